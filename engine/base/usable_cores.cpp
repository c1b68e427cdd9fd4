#include "engine/base/usable_cores.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <string>
#include <tuple>

#include <sched.h>

#include "engine/base/cgroups.h"

namespace dstrain {
namespace {

/// One number of /sys/devices/system/cpu/cpuN/topology; 0 where there is none.
int topology_number(int cpu, const char* name) {
  int number = 0;
  std::ifstream("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/" + name) >>
      number;
  return number;
}

std::vector<int> cores_of_mask() {
  // The kernel's mask may be wider than cpu_set_t's 1024 cores.
  std::vector<int> cores;
  for (int limit = 1024; limit <= 1 << 20 && cores.empty(); limit *= 4) {
    const size_t bytes = CPU_ALLOC_SIZE(limit);
    std::vector<unsigned long> mask(bytes / sizeof(unsigned long));
    auto* const set = reinterpret_cast<cpu_set_t*>(mask.data());
    if (sched_getaffinity(0, bytes, set) != 0) continue;
    for (int cpu = 0; cpu < limit; ++cpu) {
      if (CPU_ISSET_S(static_cast<size_t>(cpu), bytes, set)) cores.push_back(cpu);
    }
  }
  std::vector<std::tuple<int, int, int>> places;
  for (const int cpu : cores) {
    places.emplace_back(topology_number(cpu, "physical_package_id"),
                        topology_number(cpu, "core_id"), cpu);
  }
  std::sort(places.begin(), places.end());
  std::transform(places.begin(), places.end(), cores.begin(),
                 [](const auto& place) { return std::get<2>(place); });
  return cores;
}

/// Microseconds that a group may use in each period, divided by the period. Version 2 has both in
/// one file, where the first is "max" if there is no limit; version 1 has a file for each, and the
/// first holds -1 then.
std::optional<double> quota_of(const CgroupFolder& group) {
  std::int64_t quota = 0;
  std::int64_t period = 0;
  if (group.is_version1) {
    std::ifstream(group.path / "cpu.cfs_quota_us") >> quota;
    std::ifstream(group.path / "cpu.cfs_period_us") >> period;
  } else {
    std::ifstream(group.path / "cpu.max") >> quota >> period;  // "max" leaves both 0
  }
  if (quota <= 0 || period <= 0) return std::nullopt;
  return static_cast<double>(quota) / static_cast<double>(period);
}

}  // namespace

int UsableCores::count() const {
  const auto cores = std::max(1, static_cast<int>(ids.size()));
  if (!quota || *quota >= cores) return cores;
  return std::max(1, static_cast<int>(std::lround(*quota)));
}

bool UsableCores::quota_is_tighter() const {
  return quota && *quota < static_cast<double>(ids.size());
}

UsableCores usable_cores(const std::filesystem::path& root) {
  UsableCores usable{.ids = cores_of_mask(), .quota = std::nullopt};
  for (const CgroupFolder& group : cgroup_folders("cpu", root)) {
    if (const auto quota = quota_of(group)) {
      usable.quota = std::min(usable.quota.value_or(*quota), *quota);
    }
  }
  return usable;
}

int num_usable_cores() {
  return usable_cores().count();
}

}  // namespace dstrain
