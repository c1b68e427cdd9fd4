#include "kernels/cpu/memory_info.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include "engine/base/cgroups.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

/// The number a file holds; nothing for "max", other text or no file.
std::optional<std::int64_t> number_in(const fs::path& file) {
  std::ifstream in(file);
  std::uint64_t number = 0;
  if (in >> number) {
    return static_cast<std::int64_t>(std::min<std::uint64_t>(number, INT64_MAX));
  }
  return std::nullopt;
}

/// The number after `key` in a file of "key number" lines.
std::int64_t number_after(const fs::path& file, const std::string& key) {
  std::ifstream in(file);
  std::string line;
  while (std::getline(in, line)) {
    std::istringstream words(line);
    std::string word;
    std::int64_t number = 0;
    if (words >> word >> number && word == key) {
      return number;
    }
  }
  return 0;
}

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
        0, *usage - number_after(group.path / "memory.stat", names.reclaimable));
    info.available_bytes = std::clamp<std::int64_t>(*limit - used, 0, info.available_bytes);
  }
}

}  // namespace

MemoryInfo read_memory_info(const std::string& root) {
  const fs::path meminfo = fs::path(root) / "proc/meminfo";
  MemoryInfo info{.total_bytes = number_after(meminfo, "MemTotal:") * 1024,
                  .available_bytes = number_after(meminfo, "MemAvailable:") * 1024};
  for (const CgroupFolder& group : cgroup_folders("memory", root)) {
    apply_limits(group, info);
  }
  return info;
}

}  // namespace dstrain
