#include "kernels/cpu/memory_info.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>

#include "engine/base/cgroups.h"
#include "engine/base/kernel_numbers.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

/// The names of one version's files (Linux, admin-guide/cgroup-v1/memory and cgroup-v2).
struct CgroupFiles {
  const char* limit;
  const char* usage;
  const char* reclaimable;  ///< key in memory.stat: page cache that will be given up
};
constexpr CgroupFiles kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes",
                                "total_inactive_file"};
constexpr CgroupFiles kVersion2{"memory.max", "memory.current", "inactive_file"};

void apply_limits(const CgroupFolder& group, MemoryInfo& info) {
  const CgroupFiles& names = group.is_version1 ? kVersion1 : kVersion2;
  const auto limit = number_in(group.path / names.limit);
  const auto usage = number_in(group.path / names.usage);
  if (limit && *limit < info.total_bytes) {
    info.total_bytes = *limit;
  }
  if (limit && usage && *limit < INT64_MAX / 2) {
    const std::int64_t used = std::max<std::int64_t>(
        0, *usage - number_after(group.path / "memory.stat", names.reclaimable).value_or(0));
    info.available_bytes = std::clamp<std::int64_t>(*limit - used, 0, info.available_bytes);
  }
}

}  // namespace

MemoryInfo read_memory_info(const std::string& root) {
  const fs::path meminfo = fs::path(root) / "proc/meminfo";
  MemoryInfo info{.total_bytes = number_after(meminfo, "MemTotal:").value_or(0) * 1024,
                  .available_bytes = number_after(meminfo, "MemAvailable:").value_or(0) * 1024};
  for (const CgroupFolder& group : cgroup_folders("memory", root)) {
    apply_limits(group, info);
  }
  return info;
}

}  // namespace dstrain
