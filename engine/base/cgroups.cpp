#include "engine/base/cgroups.h"

#include <algorithm>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>

namespace dstrain {
namespace {

namespace fs = std::filesystem;

/// Whether a list such as "cpu,cpuacct" has the controller. Whole names are compared: "cpuset" is
/// not "cpu".
bool names(std::string_view controllers, std::string_view controller) {
  while (!controllers.empty()) {
    const std::string_view name = controllers.substr(0, controllers.find(','));
    if (name == controller) return true;
    controllers.remove_prefix(std::min(controllers.size(), name.size() + 1));
  }
  return false;
}

/// Adds `group` and the folders around it, up to `top`.
void add_upwards(fs::path group,
                 const fs::path& top,
                 bool is_version1,
                 std::vector<CgroupFolder>& folders) {
  while (true) {
    folders.push_back({.path = group, .is_version1 = is_version1});
    if (group == top || !group.has_relative_path()) return;
    group = group.parent_path();
  }
}

}  // namespace

// Lines of /proc/self/cgroup are "number:controllers:/path"; version 2 has no controllers.
std::vector<CgroupFolder> cgroup_folders(std::string_view controller, const fs::path& root) {
  std::vector<CgroupFolder> folders;
  std::ifstream in(root / "proc/self/cgroup");
  std::string line;
  while (std::getline(in, line)) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool is_version1 = names(controllers, controller);
    if (!is_version1 && !controllers.empty()) continue;
    const fs::path mount = root / "sys/fs/cgroup";
    const fs::path top = (is_version1 ? mount / controller : mount).lexically_normal();
    // Inside a container the path may not exist below the mount, which then is the group itself.
    const fs::path below = top / fs::path(line.substr(second + 1)).relative_path();
    std::error_code ignored;
    fs::path group = (fs::exists(below, ignored) ? below : top).lexically_normal();
    if (!group.has_filename()) group = group.parent_path();
    add_upwards(std::move(group), top, is_version1, folders);
  }
  return folders;
}

}  // namespace dstrain
