#include "engine/train/records/csv_files.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <fstream>
#include <string>

#include <fmt/format.h>

#include "engine/train/records/curves.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

/// The name of DeepSpeed's file of a curve.
std::string file_name(std::string_view curve) {
  std::string name(curve);
  std::replace(name.begin(), name.end(), '/', '_');
  return name + ".csv";
}

std::string table_header() {
  std::string header = "step,time";
  for (const Curve& curve : curves()) {
    header += fmt::format(",{}", curve.name);
  }
  return header + "\n";
}

/// The bytes of the rows that begin with a number up to `last`, after a header that is `header`; 0
/// where it is not, as in a file of another version.
std::int64_t kept_bytes(const fs::path& path, const std::string& header, std::int64_t last) {
  std::ifstream in(path, std::ios::binary);
  std::string line;
  if (last == 0 || !std::getline(in, line) || line + "\n" != header) return 0;
  auto bytes = static_cast<std::int64_t>(header.size());
  while (std::getline(in, line) && !in.eof()) {  // a row without an end is half a row
    std::int64_t at = 0;
    const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), at);
    const bool is_row = error == std::errc() && end != line.data() + line.size() && *end == ',';
    if (!is_row || at > last) break;
    bytes += static_cast<std::int64_t>(line.size()) + 1;
  }
  return bytes;
}

AppendedFile open_csv(const fs::path& path, const std::string& header, std::int64_t last) {
  const std::int64_t bytes = kept_bytes(path, header, last);
  AppendedFile file(path, bytes);
  if (bytes == 0) file.add(0, header);
  return file;
}

}  // namespace

CsvFiles::CsvFiles(const fs::path& folder, const RunPosition& resumed)
    : table_(open_csv(folder / "metrics.csv", table_header(), resumed.step)) {
  for (const Curve& curve : deepspeed_curves()) {
    const std::string_view last_part = curve.name.substr(curve.name.rfind('/') + 1);
    over_samples_.push_back(open_csv(folder / file_name(curve.name),
                                     fmt::format("step,{}\n", last_part), resumed.samples));
  }
}

void CsvFiles::write(const StepMetrics& metrics, bool /*is_last*/) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  std::string row = fmt::format("{},{:.3f}", metrics.step, now.count());
  for (const Curve& curve : curves()) {
    row += ',';
    if (const auto value = curve.value(metrics)) row += fmt::format("{}", *value);
  }
  table_.add(metrics.step, row + "\n");
  for (std::size_t i = 0; i < over_samples_.size(); ++i) {
    const double value = deepspeed_curves()[i].value(metrics).value();
    over_samples_[i].add(metrics.step, fmt::format("{},{}\n", metrics.samples, value));
  }
  table_.flush();
  for (AppendedFile& file : over_samples_) {
    file.flush();
  }
}

bool CsvFiles::has_unwritten() const {
  return table_.has_unwritten() ||
         std::any_of(over_samples_.begin(), over_samples_.end(),
                     [](const AppendedFile& file) { return file.has_unwritten(); });
}

}  // namespace dstrain
