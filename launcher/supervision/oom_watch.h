// OomWatch: tells whether the kernel's out-of-memory killer ended a process, and what had run full.
// SIGKILL alone does not say: the kernel uses it, and so does everybody else.
//
// The kernel counts its kills per memory cgroup (version 2: memory.events, version 1:
// memory.oom_control), whichever limit was hit, the cgroup's or the machine's. A kill is explained
// by the counter of the dead process's cgroup having grown; one count explains one death, so that a
// process that somebody else killed later is not explained by it. Where that counter is not
// available, the machine's (/proc/vmstat) is asked, which says less.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include <sys/types.h>

namespace dstrain::launcher {

class OomWatch {
 public:
  /// `proc` is where the kernel's files are; tests have their own.
  explicit OomWatch(std::string proc = "/proc");

  /// Notes what is counted already in the cgroup of a process that has just been started.
  void started(pid_t pid);
  /// Explains the end of a process that SIGKILL ended and that has not been waited for yet: a
  /// clause for ExitStatus::detail, or empty if it was not the kernel.
  std::string explain_kill(pid_t pid);

 private:
  struct Counter {
    std::string file;    ///< holds the line "oom_kill N"
    std::string cgroup;  ///< as the kernel names it; empty: the whole machine
    std::string folder;  ///< the cgroup's folder
    bool is_version_2 = false;
  };
  [[nodiscard]] std::optional<Counter> counter_of(pid_t pid) const;
  [[nodiscard]] std::string describe(const Counter& counter) const;
  /// True if the counter is ahead of what has been explained; takes one.
  bool take_one(const std::string& file);

  const std::string proc_;
  std::string mount_v1_;  ///< folder of the memory controller; empty: not mounted
  std::string mount_v2_;
  std::map<pid_t, Counter> started_in_;
  std::map<std::string, std::int64_t> explained_;  ///< by counter file
};

}  // namespace dstrain::launcher
