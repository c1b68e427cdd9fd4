#include "cmd/runs/run_files.h"

#include <algorithm>
#include <fstream>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/file_descriptor.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr off_t kTailBytes = 1 << 20;        // a line of metrics has some hundred
constexpr off_t kMostConfigBytes = 1 << 24;  // of a file that is read whole

/// The last bytes of a regular file; empty where there is none. A FIFO would be waited for.
std::string tail_of(const fs::path& path, off_t most) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return {};
  const off_t begin = std::max<off_t>(0, status.st_size - most);
  std::string text(static_cast<std::size_t>(status.st_size - begin), '\0');
  const ssize_t count = ::pread(file.get(), text.data(), text.size(), begin);
  text.resize(count < 0 ? 0 : static_cast<std::size_t>(count));
  return text;
}

template <typename T>
T value_or(const OrderedJson& line, const char* key, T otherwise) {
  const auto found = line.find(key);
  if (found == line.end()) return otherwise;
  try {
    return found->get<T>();
  } catch (const OrderedJson::exception&) {  // of another type: written by another program
    return otherwise;
  }
}

/// By rank, of a list of hosts with the number of neighbouring ranks on each.
std::vector<std::string> hosts_of(const OrderedJson& runs) {
  constexpr int kMostRanks = 1 << 20;
  std::vector<std::string> hosts;
  for (const OrderedJson& run : runs) {
    const bool is_run = run.is_array() && run.size() == 2 && run[0].is_string() &&
                        run[1].is_number_unsigned() && run[1] <= kMostRanks;
    if (!is_run) return {};
    hosts.insert(hosts.end(), run[1].get<std::size_t>(), run[0].get<std::string>());
  }
  return hosts;
}

RunStart start_of(const OrderedJson& line) {
  RunStart start{.time = value_or(line, "time", std::string()),
                 .step = value_or(line, "step", std::int64_t{0}),
                 .ranks = value_or(line, "ranks", 0),
                 .layout = value_or(line, "layout", OrderedJson::object()),
                 .device = value_or(line, "device", std::string()),
                 .host = value_or(line, "host", std::string()),
                 .restart = value_or(line, "restart", 0),
                 .hosts = hosts_of(value_or(line, "hosts", OrderedJson::array())),
                 .origins = {},
                 .end_time = {},
                 .end = {}};
  const auto config = value_or(line, "config", OrderedJson::object());
  for (const auto& [path, value] : config.items()) {
    const bool has_origin = value.is_array() && value.size() == 2 && value[1].is_string();
    if (has_origin) start.origins[path] = value[1].get<std::string>();
  }
  return start;
}

}  // namespace

std::vector<RunStart> read_starts(const fs::path& folder) {
  std::vector<RunStart> starts;
  std::string text = tail_of(folder / RunHistory::kFile, kMostConfigBytes);
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const auto line = OrderedJson::parse(text.substr(begin, end - begin), nullptr,
                                         /*allow_exceptions=*/false);
    begin = end + 1;
    if (!line.is_object()) continue;
    const auto event = value_or(line, "event", std::string());
    if (event == "start") {
      starts.push_back(start_of(line));
    } else if (event == "end" && !starts.empty() && starts.back().end.empty()) {
      starts.back().end_time = value_or(line, "time", std::string());
      starts.back().end = value_or(line, "how", std::string());
    }
  }
  return starts;
}

OrderedJson read_resolved_config(const fs::path& folder) {
  const std::string text = tail_of(folder / "config.resolved.json", kMostConfigBytes);
  auto config = OrderedJson::parse(text, nullptr, /*allow_exceptions=*/false);
  return config.is_object() ? config : OrderedJson();
}

void visit_step_lines(const fs::path& path,
                      std::int64_t most_bytes,
                      const std::function<bool(const Json& line)>& visit) {
  const std::string text = tail_of(path, most_bytes);
  for (std::size_t end = text.rfind('\n'); end != std::string::npos && end > 0;) {
    const std::size_t before = text.rfind('\n', end - 1);
    const std::size_t begin = before == std::string::npos ? 0 : before + 1;
    const auto line =
        Json::parse(text.substr(begin, end - begin), nullptr, /*allow_exceptions=*/false);
    const bool is_step =
        line.is_object() && line.contains("step") && line["step"].is_number_integer();
    if (is_step && !visit(line)) return;
    end = before;
  }
}

Json last_step_line(const fs::path& path) {
  Json last;
  visit_step_lines(path, kTailBytes, [&](const Json& line) {
    last = line;
    return false;
  });
  return last;
}

std::optional<double> last_number(const fs::path& path, const std::string& name) {
  std::optional<double> number;
  visit_step_lines(path, kTailBytes, [&](const Json& line) {
    number = number_at(line, name);
    return !number;
  });
  return number;
}

std::optional<double> number_at(const Json& line, const std::string& path) {
  const Json* value = &line;
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t dot = std::min(path.find('.', begin), path.size());
    if (!value->is_object()) return std::nullopt;
    const auto found = value->find(path.substr(begin, dot - begin));
    if (found == value->end()) return std::nullopt;
    value = &*found;
    begin = dot + 1;
  }
  if (value->is_boolean()) return value->get<bool>() ? 1.0 : 0.0;
  return value->is_number() ? std::optional(value->get<double>()) : std::nullopt;
}

}  // namespace dstrain
