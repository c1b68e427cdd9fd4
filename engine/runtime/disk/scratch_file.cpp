#include "engine/runtime/disk/scratch_file.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "engine/base/amount_text.h"
#include "engine/base/scratch_folder.h"
#include "engine/base/storage_error.h"
#include "engine/config/config_error.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

/// Opens a file without a name; where the file system cannot make one, a file whose name is removed
/// at once. Leaves the reason in errno.
FileDescriptor open_nameless(const fs::path& folder, int flags) {
  constexpr mode_t kMine = 0600;
  FileDescriptor file(
      ::open(folder.c_str(), O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC | flags, kMine));
  if (file || (errno != EOPNOTSUPP && errno != EISDIR)) {
    return file;
  }
  std::string name = (folder / ".dstrain-scratch-XXXXXX").string();
  file = FileDescriptor(::mkostemp(name.data(), O_CLOEXEC | flags));
  if (file) {
    ::unlink(name.c_str());
  }
  return file;
}

}  // namespace

ScratchFile::ScratchFile(fs::path folder, const std::string& key) : folder_(std::move(folder)) {
  const auto refuse = [&](std::string why) {
    throw ConfigError({.where = {}, .path = key, .message = std::move(why), .mend = {}});
  };
  if (std::string why = objection_to_scratch(folder_.string()); !why.empty()) {
    refuse(std::move(why));
  }
  file_ = open_nameless(folder_, O_DIRECT);
  if (!file_ && errno == EINVAL) {
    file_ = open_nameless(folder_, 0);
    if (file_) {
      spdlog::warn(
          "the file system of {} has no direct access (O_DIRECT): what is kept there also passes "
          "through the system's cache",
          folder_.string());
    }
  }
  if (!file_) {
    refuse(fmt::format("no file can be made in {}: {}", folder_.string(), std::strerror(errno)));
  }
}

std::int64_t ScratchFile::free_bytes() const {
  struct statfs system {};
  if (::fstatfs(file_.get(), &system) != 0) {
    return 0;
  }
  return static_cast<std::int64_t>(system.f_bavail) * static_cast<std::int64_t>(system.f_bsize);
}

std::int64_t ScratchFile::extend(std::int64_t bytes, const std::string& what) {
  const std::int64_t begin = bytes_;
  const std::int64_t added = in_blocks(bytes);
  if (added == 0) {
    return begin;
  }
  const auto fail = [&](int error) {
    throw StorageError(fmt::format("{}: {} need {} ({} bytes) on disk, {} ({} bytes) are free: {}",
                                   folder_.string(), what, size_text(added), added,
                                   size_text(free_bytes()), free_bytes(), std::strerror(error)));
  };
  while (::fallocate(file_.get(), 0, begin, added) != 0) {
    const int error = errno;
    if (error == EINTR) {
      continue;
    }
    if (error != EOPNOTSUPP) {
      fail(error);
    }
    // A file system that reserves nothing: what is free now has to do.
    if (free_bytes() < added) {
      fail(ENOSPC);
    }
    if (::ftruncate(file_.get(), begin + added) != 0) {
      fail(errno);
    }
    break;
  }
  bytes_ += added;
  return begin;
}

}  // namespace dstrain
