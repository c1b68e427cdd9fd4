#include "engine/train/records/appended_file.h"

#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/regular_file.h"
#include "engine/base/write_failure.h"
#include "engine/checkpoint/checkpoint_error.h"

namespace dstrain {
namespace {

[[noreturn]] void fail(std::string_view what, const std::filesystem::path& path) {
  throw StorageError(describe_write_failure(what, path.string(), errno));
}

/// Writes all of it; returns 0, or the errno of the failure.
int write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(fd, text.data(), text.size());
    if (count < 0 && errno != EINTR) {
      return errno;
    }
    text.remove_prefix(count < 0 ? 0 : static_cast<std::size_t>(count));
  }
  return 0;
}

}  // namespace

FileDescriptor open_for_appending(const std::filesystem::path& path) {
  // Opening a pipe without O_NONBLOCK would wait for a reader.
  FileDescriptor file(
      ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_NONBLOCK | O_CLOEXEC, 0666));
  if (!file) {
    fail("open", path);
  }
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) {
    fail("inspect", path);
  }
  if (!S_ISREG(status.st_mode)) {
    throw StorageError(
        fmt::format("cannot write {}: {}", path.string(), what_it_is(status.st_mode)));
  }
  return file;
}

AppendedFile::AppendedFile(std::filesystem::path path, FileDescriptor file, std::int64_t bytes)
    : path_(std::move(path)), file_(std::move(file)), bytes_(bytes) {}

AppendedFile::AppendedFile(std::filesystem::path path, std::int64_t bytes)
    : path_(std::move(path)), file_(open_for_appending(path_)), bytes_(bytes) {
  if (::ftruncate(file_.get(), bytes) != 0) {
    fail("shorten", path_);
  }
  if (::fsync(file_.get()) != 0) {
    fail("sync", path_);
  }
}

void AppendedFile::add(std::int64_t step, std::string_view record) {
  unwritten_.append(record);
  last_step_ = step;
}

void AppendedFile::flush() {
  if (!has_unwritten()) {
    return;
  }
  const std::int64_t end = end_byte();
  if (const int error = write_all(file_.get(), unwritten_); error != 0) {
    // If half a record cannot be removed here, it is cut off when the run resumes.
    static_cast<void>(::ftruncate(file_.get(), bytes_) == 0);
    throw StorageError(describe_write_failure(fmt::format("write step {} to", last_step_),
                                              path_.string(), error, end));
  }
  bytes_ = end;
  unwritten_.clear();
}

}  // namespace dstrain
