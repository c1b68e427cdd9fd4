#include "engine/train/records/run_history.h"

#include <exception>

#include <nlohmann/json.hpp>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include "engine/train/records/appended_file.h"
#include "engine/train/run_outline.h"

namespace dstrain {
namespace {

using Json = nlohmann::ordered_json;

/// Half a line, which a power cut can leave, is ended first.
void add_line(const std::filesystem::path& path, std::int64_t step, const Json& line) {
  FileDescriptor file = open_for_appending(path);
  const off_t bytes = ::lseek(file.get(), 0, SEEK_END);
  char last = '\n';
  if (bytes > 0) static_cast<void>(::pread(file.get(), &last, 1, bytes - 1));
  AppendedFile history(path, std::move(file), bytes);
  if (last != '\n') history.add(step, "\n");
  history.add(step, line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
  history.flush();
}

/// Each host with the number of neighbouring ranks on it.
Json runs_of(const std::vector<std::string>& hosts) {
  Json runs = Json::array();
  for (const std::string& host : hosts) {
    if (runs.empty() || runs.back()[0] != host) runs.push_back({host, 0});
    runs.back()[1] = runs.back()[1].get<int>() + 1;
  }
  return runs;
}

}  // namespace

void RunHistory::start(std::int64_t step,
                       const LoadedConfig& loaded,
                       const Mesh& mesh,
                       const std::string& device,
                       const std::vector<std::string>& hosts,
                       const OwnerRecord& owner) {
  Json written = Json::object();
  for (const ConfigValue& value : loaded.values) {
    if (value.origin.starts_with("default")) continue;
    written[value.path] = {Json::parse(value.value, nullptr, /*allow_exceptions=*/false),
                           value.origin};
  }
  add_line(path_, step,
           {{"event", "start"},
            {"time", utc_now()},
            {"step", step},
            {"ranks", mesh.world_size()},
            {"layout", layout_json(mesh, loaded.config)},
            {"device", device},
            {"host", owner.process.host},
            {"job", owner.job},
            {"restart", owner.restart},
            {"hosts", runs_of(hosts)},
            {"config", written}});
  has_started_ = true;
}

void RunHistory::end(const std::string& how) noexcept {
  if (!has_started_) return;
  try {
    add_line(path_, 0, {{"event", "end"}, {"time", utc_now()}, {"how", how}});
  } catch (const std::exception& error) {
    spdlog::warn("{}: how the run ended is in {} alone", error.what(), kLastRunFile);
  }
}

}  // namespace dstrain
