#include "launcher/process/task_limits.h"

#include <cctype>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>
#include <unistd.h>

#include "engine/base/cgroups.h"
#include "engine/base/kernel_numbers.h"

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

/// Processes and threads of the user, as the kernel counts them against RLIMIT_NPROC.
std::int64_t tasks_of_user(const fs::path& root, uid_t user) {
  std::int64_t tasks = 0;
  std::error_code ended;
  for (fs::directory_iterator entry(root / "proc", ended), end; entry != end;
       entry.increment(ended)) {
    if (std::isdigit(static_cast<unsigned char>(entry->path().filename().native()[0])) == 0) {
      continue;
    }
    const fs::path status = entry->path() / "status";
    if (number_after(status, "Uid:") != user) continue;
    tasks += number_after(status, "Threads:").value_or(0);
  }
  return tasks;
}

std::vector<TaskLimit> limits_of_cgroups(const fs::path& root) {
  std::vector<TaskLimit> limits;
  for (const CgroupFolder& group : cgroup_folders("pids", root)) {
    const auto most = number_in(group.path / "pids.max");
    const auto in_use = number_in(group.path / "pids.current");
    if (!most || !in_use) continue;
    const fs::path top = root / (group.is_version1 ? "sys/fs/cgroup/pids" : "sys/fs/cgroup");
    const std::string name = group.path.lexically_relative(top);
    limits.push_back(
        {fmt::format("pids.max of the cgroup /{}", name == "." ? "" : name), *most, *in_use});
  }
  return limits;
}

}  // namespace

std::string describe_task_limits(const fs::path& root) {
  std::vector<TaskLimit> limits = limits_of_cgroups(root);
  rlimit own{};
  // The limit does not bind root, but a user of a namespace who only looks like root is.
  if (getrlimit(RLIMIT_NPROC, &own) == 0 && own.rlim_cur != RLIM_INFINITY) {
    limits.push_back({"RLIMIT_NPROC (ulimit -u) of this user",
                      static_cast<std::int64_t>(own.rlim_cur), tasks_of_user(root, getuid())});
  }
  if (const auto most = number_in(root / "proc/sys/kernel/threads-max")) {
    std::ifstream load(root / "proc/loadavg");  // "0.1 0.2 0.3 2/345 6789"
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
