#include "launcher/process/plain_file.h"

#include <array>
#include <cerrno>
#include <string_view>
#include <system_error>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launcher/process/file_descriptor.h"

namespace dstrain::launcher {
namespace {

bool is_own_descriptor(const std::string& path) {
  return path == "/dev/stdin" || path.starts_with("/dev/fd/") || path.starts_with("/proc/self/fd/");
}

std::string_view what_it_is(mode_t mode) {
  if (S_ISDIR(mode)) return "is a folder, not a file";
  if (S_ISFIFO(mode)) return "is a pipe, not a file";
  if (S_ISSOCK(mode)) return "is a socket, not a file";
  return "is a device, not a file";
}

}  // namespace

PlainText read_plain_file(const std::string& path, MayBePipe may_be_pipe, std::size_t most_bytes) {
  const bool takes_pipe = may_be_pipe == MayBePipe::kYes && is_own_descriptor(path);
  const FileDescriptor file(
      open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | (takes_pipe ? 0 : O_NONBLOCK)));
  struct stat facts {};
  if (!file || fstat(file.get(), &facts) != 0) {
    return {.why = errno == ENXIO ? "is a socket, not a file"
                                  : std::generic_category().message(errno)};
  }
  if (!S_ISREG(facts.st_mode) && !(takes_pipe && S_ISFIFO(facts.st_mode))) {
    return {.why = std::string(what_it_is(facts.st_mode))};
  }
  PlainText read_so_far;
  std::array<char, 1 << 16> buffer;
  while (true) {
    const ssize_t size = read(file.get(), buffer.data(), buffer.size());
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return {.why = std::generic_category().message(errno)};
    if (size == 0) return read_so_far;
    read_so_far.text.append(buffer.data(), static_cast<std::size_t>(size));
    if (read_so_far.text.size() > most_bytes) {
      return {.why = fmt::format("has more than {} bytes, the most that are read", most_bytes)};
    }
  }
}

}  // namespace dstrain::launcher
