// The control groups that limit this process: those of a container, a batch job, a systemd slice.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

namespace dstrain {

struct CgroupFolder {
  std::filesystem::path path;
  bool is_version1 = false;  ///< version 1 and 2 call their files differently
};

/// The folders in which `controller` ("cpu", "memory") keeps the limits of this process: that of
/// its own group first, then those of the groups around it, each of which limits it as well, as far
/// as they can be seen from here. `root` is "/" except in tests. Empty where there are none.
std::vector<CgroupFolder> cgroup_folders(std::string_view controller,
                                         const std::filesystem::path& root = "/");

}  // namespace dstrain
