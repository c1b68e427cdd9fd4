// How this program opens what it reads: regular files alone. A pipe in the place of a file keeps
// whoever opens it waiting for a writer, and a device may have no end; neither is waited for or
// read here, whoever put it there.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace dstrain {

/// What something is that is no regular file, as a clause: "is a named pipe, not a file".
inline std::string_view what_it_is(mode_t mode) {
  if (S_ISDIR(mode)) return "is a folder, not a file";
  if (S_ISFIFO(mode)) return "is a pipe, not a file";
  if (S_ISSOCK(mode)) return "is a socket, not a file";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "is a device, not a file";
  return "is not a file";
}

struct OpenedFile {
  int fd = -1;              ///< the caller's to close; -1: it could not be opened
  std::int64_t bytes = 0;   ///< its size now
  std::string why{};        ///< a clause, where it could not: "No such file or directory"
  bool is_missing = false;  ///< that is why
};

/// For reading.
inline OpenedFile open_regular_file(const std::string& path) {
  OpenedFile opened;
  // O_NONBLOCK: neither a pipe's writer nor a terminal is waited for. It means nothing to a file.
  opened.fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  struct stat facts {};
  if (opened.fd < 0 || ::fstat(opened.fd, &facts) != 0) {
    opened.is_missing = errno == ENOENT || errno == ENOTDIR;
    opened.why =
        errno == ENXIO ? "is a socket, not a file" : std::generic_category().message(errno);
  } else if (!S_ISREG(facts.st_mode)) {
    opened.why = what_it_is(facts.st_mode);
  }
  if (!opened.why.empty()) {
    if (opened.fd >= 0) ::close(opened.fd);
    opened.fd = -1;
  }
  opened.bytes = facts.st_size;
  return opened;
}

struct FileText {
  std::string text{};
  std::string why{};        ///< a clause, where it could not be read; the text is empty then
  bool is_missing = false;  ///< there is no such file
};

/// All of it; nothing of a file of more than `most_bytes`.
inline FileText read_regular_file(const std::string& path,
                                  std::int64_t most_bytes = std::int64_t{1} << 40) {
  const OpenedFile file = open_regular_file(path);
  FileText read{.why = file.why, .is_missing = file.is_missing};
  if (file.fd < 0) return read;
  if (file.bytes > most_bytes) {
    read.why = "has " + std::to_string(file.bytes) + " bytes, and " + std::to_string(most_bytes) +
               " are the most it may have";
  }
  constexpr std::size_t kStep = std::size_t{1} << 20;
  while (read.why.empty()) {
    const std::size_t have = read.text.size();
    // In a file of /proc there is more than its size says.
    const auto left = std::max<std::int64_t>(file.bytes - static_cast<std::int64_t>(have), 0);
    const std::size_t step = left == 0 ? 4096 : std::min(kStep, static_cast<std::size_t>(left) + 1);
    read.text.resize(have + step);
    const ssize_t size = ::read(file.fd, read.text.data() + have, step);
    read.text.resize(have + static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
    if (size == 0) break;
    if (size < 0 && errno != EINTR) read.why = std::generic_category().message(errno);
    if (static_cast<std::int64_t>(read.text.size()) > most_bytes) read.why = "grows without end";
  }
  if (!read.why.empty()) read.text.clear();
  ::close(file.fd);
  return read;
}

}  // namespace dstrain
