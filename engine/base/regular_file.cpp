#include "engine/base/regular_file.h"

#include <algorithm>
#include <cerrno>
#include <system_error>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace dstrain {
namespace {

bool is_own_descriptor(const std::string& path) {
  return path == "/dev/stdin" || path.starts_with("/dev/fd/") || path.starts_with("/proc/self/fd/");
}

}  // namespace

std::string_view what_it_is(mode_t mode) {
  if (S_ISDIR(mode)) return "is a folder, not a file";
  if (S_ISFIFO(mode)) return "is a pipe, not a file";
  if (S_ISSOCK(mode)) return "is a socket, not a file";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "is a device, not a file";
  return "is not a file";
}

OpenedFile open_regular_file(const std::string& path, MayBePipe may_be_pipe) {
  const bool takes_pipe = may_be_pipe == MayBePipe::kYes && is_own_descriptor(path);
  OpenedFile opened;
  // With O_NONBLOCK, opening waits neither for a pipe's writer nor for a terminal. A file ignores
  // it.
  opened.file = FileDescriptor(
      ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | (takes_pipe ? 0 : O_NONBLOCK)));
  struct stat facts {};
  if (!opened.file || ::fstat(opened.file.get(), &facts) != 0) {
    opened.is_missing = errno == ENOENT || errno == ENOTDIR;
    opened.why =
        errno == ENXIO ? "is a socket, not a file" : std::generic_category().message(errno);
  } else if (!S_ISREG(facts.st_mode) && !(takes_pipe && S_ISFIFO(facts.st_mode))) {
    opened.why = what_it_is(facts.st_mode);
  }
  if (!opened.why.empty()) opened.file.reset();
  opened.bytes = facts.st_size;
  return opened;
}

FileText read_regular_file(const std::string& path,
                           std::int64_t most_bytes,
                           MayBePipe may_be_pipe) {
  const OpenedFile opened = open_regular_file(path, may_be_pipe);
  FileText read{.why = opened.why, .is_missing = opened.is_missing};
  if (!opened.file) return read;
  if (opened.bytes > most_bytes) {
    read.why = "has " + std::to_string(opened.bytes) + " bytes, but " + std::to_string(most_bytes) +
               " are the most allowed";
  }
  constexpr std::size_t kStep = std::size_t{1} << 20;
  while (read.why.empty()) {
    const std::size_t have = read.text.size();
    // A file of /proc, and a pipe, holds more than its size says.
    const auto left = std::max<std::int64_t>(opened.bytes - static_cast<std::int64_t>(have), 0);
    const std::size_t step = left == 0 ? 4096 : std::min(kStep, static_cast<std::size_t>(left) + 1);
    read.text.resize(have + step);
    const ssize_t size = ::read(opened.file.get(), read.text.data() + have, step);
    read.text.resize(have + static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
    if (size == 0) break;
    if (size < 0 && errno != EINTR) read.why = std::generic_category().message(errno);
    if (static_cast<std::int64_t>(read.text.size()) > most_bytes) {
      read.why = "has more than " + std::to_string(most_bytes) + " bytes, the most allowed";
    }
  }
  if (!read.why.empty()) read.text.clear();
  return read;
}

}  // namespace dstrain
