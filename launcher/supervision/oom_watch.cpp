#include "launcher/supervision/oom_watch.h"

#include <fstream>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "engine/base/amount_text.h"
#include "engine/base/kernel_numbers.h"

namespace dstrain::launcher {
namespace {

/// The count in a file of lines "NAME NUMBER".
std::optional<std::int64_t> oom_kills_in(const std::string& path) {
  return number_after(path, "oom_kill");
}

/// "/a/b", "/a", "": the cgroup and those around it.
std::vector<std::string> upwards(std::string path) {
  std::vector<std::string> paths;
  while (!path.empty() && path != "/") {
    paths.push_back(path);
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
  paths.emplace_back();
  return paths;
}

}  // namespace

OomWatch::OomWatch(std::string proc) : proc_(std::move(proc)) {
  // "36 35 98:0 root mount-point options … - type source super-options"
  std::ifstream mounts(proc_ + "/self/mountinfo");
  std::string line;
  while (std::getline(mounts, line)) {
    std::istringstream words(line);
    std::string id, parent, device, root, point, word, type, source, options;
    words >> id >> parent >> device >> root >> point;
    while (words >> word && word != "-") {
    }
    words >> type >> source >> options;
    if (type == "cgroup2") mount_v2_ = point;
    if (type == "cgroup" && fmt::format(",{},", options).find(",memory,") != std::string::npos) {
      mount_v1_ = point;
    }
  }
  if (const auto machine = oom_kills_in(proc_ + "/vmstat"))
    explained_[proc_ + "/vmstat"] = *machine;
}

void OomWatch::started(pid_t pid) {
  auto counter = counter_of(pid);
  if (!counter) return;
  if (!explained_.contains(counter->file)) {
    explained_[counter->file] = oom_kills_in(counter->file).value_or(0);
  }
  started_in_[pid] = std::move(*counter);
}

std::string OomWatch::explain_kill(pid_t pid) {
  const std::string machine = proc_ + "/vmstat";
  std::optional<Counter> counter = counter_of(pid);
  // Version 1 shows a dead process in the root group, whatever group it died in.
  if (!counter || !counter->is_version_2) {
    const auto start = started_in_.find(pid);
    counter = start == started_in_.end() ? std::nullopt : std::optional(start->second);
  }
  if (counter && take_one(counter->file)) {
    take_one(machine);  // counts the same kill, which must not explain another death as well
    return "killed by the kernel's out-of-memory killer: " + describe(*counter);
  }
  // Version 2 has the last word. Elsewhere the process may have changed its group.
  if (counter && counter->is_version_2) return {};
  return take_one(machine) ? "the kernel's out-of-memory killer struck on this machine just then"
                           : "";
}

std::optional<OomWatch::Counter> OomWatch::counter_of(pid_t pid) const {
  // Lines "4:memory:/path" (version 1) and "0::/path" (version 2). A dead process that nobody has
  // waited for still has them.
  std::ifstream groups(fmt::format("{}/{}/cgroup", proc_, pid));
  std::string line;
  std::optional<Counter> found;
  while (std::getline(groups, line)) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = fmt::format(",{},", line.substr(first + 1, second - first - 1));
    const std::string cgroup = line.substr(second + 1);
    const bool is_version_2 = controllers == ",,";
    const std::string& mount = is_version_2 ? mount_v2_ : mount_v1_;
    if (mount.empty() || (!is_version_2 && controllers.find(",memory,") == std::string::npos)) {
      continue;
    }
    const std::string folder = mount + (cgroup == "/" ? "" : cgroup);
    const std::string file = folder + (is_version_2 ? "/memory.events" : "/memory.oom_control");
    if (oom_kills_in(file)) found = Counter{file, cgroup, folder, is_version_2};
  }
  return found;
}

std::string OomWatch::describe(const Counter& counter) const {
  const std::string& mount = counter.is_version_2 ? mount_v2_ : mount_v1_;
  const char* const limit_name = counter.is_version_2 ? "memory.max" : "memory.limit_in_bytes";
  const char* const peak_name = counter.is_version_2 ? "memory.peak" : "memory.max_usage_in_bytes";
  // Version 1 gives more than this where there is no limit.
  constexpr std::int64_t kUnlimited = std::int64_t{1} << 60;
  for (const std::string& cgroup : upwards(counter.cgroup)) {
    const auto limit = number_in(fmt::format("{}{}/{}", mount, cgroup, limit_name));
    if (!limit || *limit > kUnlimited) continue;
    std::string text =
        fmt::format("memory cgroup {}, limit {}", cgroup.empty() ? "/" : cgroup, size_text(*limit));
    if (const auto peak = number_in(fmt::format("{}{}/{}", mount, cgroup, peak_name))) {
      text += fmt::format(", peak {}", size_text(*peak));
    }
    return text;
  }
  return "the machine's memory had run out";
}

bool OomWatch::take_one(const std::string& file) {
  const std::int64_t now = oom_kills_in(file).value_or(0);
  std::int64_t& explained = explained_[file];
  if (now <= explained) return false;
  ++explained;
  return true;
}

}  // namespace dstrain::launcher
