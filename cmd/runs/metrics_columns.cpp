#include "cmd/runs/metrics_columns.h"

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <fstream>
#include <limits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/checkpoint/checkpoint_error.h"

namespace dstrain {
namespace {

constexpr float kNone = std::numeric_limits<float>::quiet_NaN();

}  // namespace

/// Takes the numbers of one line as its parser meets them, without building it: a run has a million
/// lines.
class LineReader {
 public:
  explicit LineReader(MetricsColumns& columns) : columns_(columns) {}

  void begin_line() {
    path_.clear();
    ends_.clear();
    values_.clear();
    step_.reset();
    time_ = std::numeric_limits<double>::quiet_NaN();
  }
  /// Returns false where the line is of no step, or of one that is not after the last.
  bool take_line() {
    auto& steps = columns_.steps_;
    if (!step_ || (!steps.empty() && *step_ <= steps.back())) return false;
    const std::size_t before = steps.size();
    steps.push_back(*step_);
    columns_.times_.push_back(time_);
    for (const auto& [path, value] : values_) {
      auto& column = columns_.columns_[path];
      column.resize(before, kNone);
      column.push_back(value);
    }
    return true;
  }

  // nlohmann's parser calls the following.
  bool null() { return true; }
  bool boolean(bool value) { return number(value ? 1.0 : 0.0); }
  bool number_integer(std::int64_t value) { return integer(value); }
  bool number_unsigned(std::uint64_t value) { return integer(static_cast<std::int64_t>(value)); }
  bool number_float(double value, const std::string& /*text*/) { return number(value); }
  bool string(std::string& value) {
    if (ends_.size() == 1 && key_ == "time") time_ = seconds_of(value);
    return true;
  }
  bool binary(nlohmann::json::binary_t& /*value*/) { return true; }
  bool start_object(std::size_t /*elements*/) {
    ends_.push_back(path_.size());
    if (ends_.size() > 1) path_ += key_ + ".";
    return true;
  }
  bool end_object() {
    path_.resize(ends_.back());
    ends_.pop_back();
    return true;
  }
  bool start_array(std::size_t /*elements*/) {
    ++lists_;
    return true;
  }
  bool end_array() {
    --lists_;
    return true;
  }
  bool key(std::string& name) {
    key_ = name;
    return true;
  }
  bool parse_error(std::size_t /*at*/,
                   const std::string& /*token*/,
                   const nlohmann::json::exception& /*error*/) {
    lists_ = 0;
    return false;
  }

 private:
  bool integer(std::int64_t value) {
    if (ends_.size() == 1 && lists_ == 0 && key_ == "step") step_ = value;
    return number(static_cast<double>(value));
  }
  bool number(double value) {
    if (lists_ == 0) values_.emplace_back(path_ + key_, static_cast<float>(value));
    return true;
  }

  MetricsColumns& columns_;
  std::string path_;               // of the object that is being read, with a dot at its end
  std::vector<std::size_t> ends_;  // of path_, before each object that is open
  std::string key_;
  int lists_ = 0;
  std::vector<std::pair<std::string, float>> values_;
  std::optional<std::int64_t> step_;
  double time_ = 0.0;
};

MetricsColumns::MetricsColumns(const std::filesystem::path& folder) {
  std::ifstream in(folder / "metrics.jsonl", std::ios::binary);
  LineReader reader(*this);
  for (std::string line; std::getline(in, line);) {
    reader.begin_line();
    const bool is_whole = nlohmann::json::sax_parse(line, &reader);
    if (!is_whole || !reader.take_line()) ++bad_lines_;
  }
  if (in.bad()) {
    throw StorageError(fmt::format("cannot read {}", (folder / "metrics.jsonl").string()));
  }
  for (auto& [path, column] : columns_) {
    column.resize(steps_.size(), kNone);
  }
}

const std::vector<float>& MetricsColumns::column(const std::string& path) const {
  static const std::vector<float> none;
  const auto found = columns_.find(path);
  return found == columns_.end() ? none : found->second;
}

double seconds_of(std::string_view utc) {
  constexpr std::string_view kShape = "0000-00-00T00:00:00";
  if (utc.size() < kShape.size()) return std::numeric_limits<double>::quiet_NaN();
  const auto number = [&](std::size_t at, std::size_t count) {
    int value = -1;
    std::from_chars(utc.data() + at, utc.data() + at + count, value);
    return value;
  };
  using namespace std::chrono;
  const year_month_day date{year(number(0, 4)), month(static_cast<unsigned>(number(5, 2))),
                            day(static_cast<unsigned>(number(8, 2)))};
  if (!date.ok()) return std::numeric_limits<double>::quiet_NaN();
  const sys_seconds whole =
      sys_days(date) + hours(number(11, 2)) + minutes(number(14, 2)) + seconds(number(17, 2));
  const bool has_millis = utc.size() >= kShape.size() + 4 && utc[kShape.size()] == '.';
  return static_cast<double>(whole.time_since_epoch().count()) +
         (has_millis ? number(kShape.size() + 1, 3) / 1000.0 : 0.0);
}

}  // namespace dstrain
