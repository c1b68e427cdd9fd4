#include "kernels/cpu/memory_info.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

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

/// Applies the limits of `group` and of the groups above it, up to `top`.
void apply_limits(fs::path group, const fs::path& top, const CgroupFiles& names, MemoryInfo& info) {
  while (true) {
    const auto limit = number_in(group / names.limit);
    const auto usage = number_in(group / names.usage);
    if (limit && *limit < info.total_bytes) {
      info.total_bytes = *limit;
    }
    if (limit && usage && *limit < INT64_MAX / 2) {
      const std::int64_t used = std::max<std::int64_t>(
          0, *usage - number_after(group / "memory.stat", names.reclaimable));
      info.available_bytes = std::clamp<std::int64_t>(*limit - used, 0, info.available_bytes);
    }
    if (group == top || !group.has_relative_path()) {
      return;
    }
    group = group.parent_path();
  }
}

/// Lines of /proc/self/cgroup are "number:controllers:/path"; version 2 has no controllers.
void apply_cgroups(const fs::path& root, MemoryInfo& info) {
  std::ifstream in(root / "proc/self/cgroup");
  std::string line;
  while (std::getline(in, line)) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) {
      continue;
    }
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool version1 = controllers.find("memory") != std::string::npos;
    if (!version1 && !controllers.empty()) {
      continue;
    }
    const fs::path top = root / (version1 ? "sys/fs/cgroup/memory" : "sys/fs/cgroup");
    // Inside a container the path may not exist below the mount, which then is the group itself.
    const fs::path below = top / fs::path(line.substr(second + 1)).relative_path();
    std::error_code ignored;
    const fs::path group = fs::exists(below, ignored) ? below : top;
    fs::path clean = group.lexically_normal();
    if (!clean.has_filename()) {
      clean = clean.parent_path();
    }
    apply_limits(clean, top.lexically_normal(), version1 ? kVersion1 : kVersion2, info);
  }
}

}  // namespace

MemoryInfo read_memory_info(const std::string& root) {
  const fs::path meminfo = fs::path(root) / "proc/meminfo";
  MemoryInfo info{.total_bytes = number_after(meminfo, "MemTotal:") * 1024,
                  .available_bytes = number_after(meminfo, "MemAvailable:") * 1024};
  apply_cgroups(root, info);
  return info;
}

}  // namespace dstrain
