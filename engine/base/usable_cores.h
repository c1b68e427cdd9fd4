// How much of the machine's processors this process may use: the cores that taskset, a batch system
// or the launcher left it, and the time on them that a container's quota allows (docker's --cpus,
// Kubernetes' limits). The only place where cores are counted.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

namespace dstrain {

struct UsableCores {
  /// The cores that it may run on, neighbours together: by package, then core, then hardware
  /// thread.
  std::vector<int> ids;
  /// The number of cores that it may keep busy over time: the tightest of its control groups'
  /// quotas. Absent: all.
  std::optional<double> quota;

  /// The number of threads that it may keep busy, at least one. A quota counts to the nearest whole
  /// number: rounded down, 1.9 cores would leave almost half of what is paid for idle; rounded up,
  /// a quota of 2.1 would have all three threads stopped for a third of every period to gain a
  /// twentieth.
  [[nodiscard]] int count() const;
  /// Whether the quota allows less than the cores do. Which of the cores a process then takes is
  /// best left to the kernel, since other containers have the same cores.
  [[nodiscard]] bool quota_is_tighter() const;
};

/// `root`, under which the kernel's files about control groups are, is "/" except in tests. Files
/// that are missing or unreadable set no limit.
UsableCores usable_cores(const std::filesystem::path& root = "/");

/// usable_cores().count().
int num_usable_cores();

}  // namespace dstrain
