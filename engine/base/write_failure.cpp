#include "engine/base/write_failure.h"

#include <cerrno>
#include <filesystem>
#include <system_error>

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

namespace dstrain {
namespace {

/// The remedy that the user has, where one is known.
std::string_view advice(int error) {
  switch (error) {
    case EACCES:
    case EPERM:
      return "; choose a folder that this user may write to";
    case ENOENT:
      return "; is its folder on a file system that all hosts share?";
    case EDQUOT:
      return "; the user's quota is used up";
    default:
      return "";
  }
}

std::string free_space(const std::string& path) {
  std::string folder = std::filesystem::path(path).parent_path().string();
  if (folder.empty()) {
    folder = ".";
  }
  struct statvfs status {};
  if (::statvfs(folder.c_str(), &status) != 0) {
    return "";
  }
  return fmt::format(", {} bytes are free on its file system",
                     status.f_bavail * static_cast<std::uint64_t>(status.f_frsize));
}

std::string size_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    return fmt::format(", files of this process may have {} bytes (ulimit -f)", limit.rlim_cur);
  }
  return ", which is more than its file system allows";
}

}  // namespace

std::string describe_write_failure(std::string_view what,
                                   const std::string& path,
                                   int error,
                                   std::optional<std::int64_t> needed_bytes) {
  std::string text = fmt::format("cannot {} {}: {}{}", what, path,
                                 std::generic_category().message(error), advice(error));
  const bool no_room = error == ENOSPC || error == EDQUOT;
  if (!no_room && error != EFBIG) {
    return text;
  }
  if (needed_bytes) {
    text += fmt::format("; it needs {} bytes", *needed_bytes);
  }
  return text + (no_room ? free_space(path) : size_limit());
}

}  // namespace dstrain
