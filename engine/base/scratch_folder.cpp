#include "engine/base/scratch_folder.h"

#include <cerrno>
#include <cstring>

#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

namespace dstrain {

std::string objection_to_scratch(const std::string& folder) {
  struct stat status {};
  if (::stat(folder.c_str(), &status) != 0) {
    return errno == ENOENT
               ? fmt::format("{} is not there on this host: make the folder, or name another",
                             folder)
               : fmt::format("{} cannot be used: {}", folder, std::strerror(errno));
  }
  if (!S_ISDIR(status.st_mode)) {
    return fmt::format("{} is not a folder", folder);
  }
  if (::access(folder.c_str(), W_OK | X_OK) != 0) {
    return fmt::format("{} cannot be written: {}", folder, std::strerror(errno));
  }
  struct statfs system {};
  if (::statfs(folder.c_str(), &system) == 0 &&
      (system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC)) {
    return fmt::format(
        "{} lies in memory (tmpfs), which is what a disk is to save: name a folder on a disk",
        folder);
  }
  return "";
}

std::int64_t free_bytes_in(const std::string& folder) {
  struct statfs system {};
  if (::statfs(folder.c_str(), &system) != 0) {
    return -1;
  }
  return static_cast<std::int64_t>(system.f_bavail) * static_cast<std::int64_t>(system.f_bsize);
}

}  // namespace dstrain
