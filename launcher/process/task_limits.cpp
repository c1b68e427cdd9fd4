#include "launcher/process/task_limits.h"

#include <cctype>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>
#include <unistd.h>

namespace dstrain::launcher {
namespace {

namespace fs = std::filesystem;

struct TaskLimit {
  std::string name;
  std::int64_t most = 0;
  std::int64_t in_use = 0;

  /// Usage is counted a moment after the failure, when some tasks may have ended.
  [[nodiscard]] bool is_reached() const { return in_use + 1 + most / 50 >= most; }
  [[nodiscard]] std::string describe() const {
    return fmt::format("{} allows {} processes and threads, and {} are there", name, most, in_use);
  }
};

/// Returns nothing where there is no such file, or no number ("max").
std::optional<std::int64_t> number_in(const fs::path& path) {
  std::ifstream file(path);
  std::int64_t number = 0;
  return file >> number ? std::optional(number) : std::nullopt;
}

/// Processes and threads of the user, as the kernel counts them against RLIMIT_NPROC.
std::int64_t tasks_of_user(const std::string& root, uid_t user) {
  std::int64_t tasks = 0;
  std::error_code ended;
  for (fs::directory_iterator entry(root + "/proc", ended), end; entry != end;
       entry.increment(ended)) {
    if (std::isdigit(static_cast<unsigned char>(entry->path().filename().native()[0])) == 0) {
      continue;
    }
    std::ifstream status(entry->path() / "status");
    std::int64_t threads = 0;
    bool is_own = false;
    for (std::string line; std::getline(status, line);) {
      std::istringstream words(line);
      std::string key;
      std::int64_t value = -1;
      words >> key >> value;
      if (key == "Uid:") is_own = value == static_cast<std::int64_t>(user);
      if (key == "Threads:") threads = value;
    }
    if (is_own) tasks += threads;
  }
  return tasks;
}

/// The own cgroup's and those around it, as far as they can be seen from here.
std::vector<TaskLimit> limits_of_cgroups(const std::string& root) {
  std::vector<TaskLimit> limits;
  std::ifstream groups(root + "/proc/self/cgroup");
  // "0::/path" (version 2), "7:pids:/path" (version 1).
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string_view controller =
        std::string_view(line).substr(first + 1, second - first - 1);
    if (!controller.empty() && controller != "pids") continue;
    const std::string mount =
        root + (controller.empty() ? "/sys/fs/cgroup" : "/sys/fs/cgroup/pids");
    std::string path = line.substr(second + 1);
    while (true) {
      if (path == "/") path.clear();
      const auto most = number_in(mount + path + "/pids.max");
      const auto in_use = number_in(mount + path + "/pids.current");
      if (most && in_use) {
        limits.push_back(
            {fmt::format("pids.max of the cgroup {}", path.empty() ? "/" : path), *most, *in_use});
      }
      if (path.empty()) break;
      path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
    }
  }
  return limits;
}

}  // namespace

std::string describe_task_limits(const std::string& root) {
  std::vector<TaskLimit> limits = limits_of_cgroups(root);
  rlimit own{};
  // Root is not held to it, but a user of a namespace who only looks like root is.
  if (getrlimit(RLIMIT_NPROC, &own) == 0 && own.rlim_cur != RLIM_INFINITY) {
    limits.push_back({"RLIMIT_NPROC (ulimit -u) of this user",
                      static_cast<std::int64_t>(own.rlim_cur), tasks_of_user(root, getuid())});
  }
  if (const auto most = number_in(root + "/proc/sys/kernel/threads-max")) {
    std::ifstream load(root + "/proc/loadavg");  // "0.1 0.2 0.3 2/345 6789"
    std::string word;
    std::int64_t running = 0;
    std::int64_t all = 0;
    char slash = 0;
    if (load >> word >> word >> word >> running >> slash >> all) {
      limits.push_back({"kernel.threads-max of this machine", *most, all});
    }
  }
  std::vector<std::string> reached;
  std::vector<std::string> all;
  for (const TaskLimit& limit : limits) {
    all.push_back(limit.describe());
    if (limit.is_reached()) reached.push_back(limit.describe());
  }
  const std::vector<std::string>& told = reached.empty() ? all : reached;
  return told.empty() ? "" : fmt::format(": {}", fmt::join(told, "; "));
}

}  // namespace dstrain::launcher
