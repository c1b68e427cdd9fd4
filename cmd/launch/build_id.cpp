#include "cmd/launch/build_id.h"

#include <array>
#include <cerrno>
#include <span>
#include <system_error>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/checkpoint/checksum.h"
#include "kernels/core/regular_file.h"
#include "launcher/process/file_descriptor.h"

namespace dstrain {

std::uint64_t hash_of_file(const std::string& path) {
  const auto fail = [&] { throw std::system_error(errno, std::generic_category(), path); };
  // Whoever asks names the path: a pipe there must not be waited for.
  const launcher::FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) fail();
  struct stat facts {};
  if (fstat(file.get(), &facts) != 0) fail();
  if (!S_ISREG(facts.st_mode)) {
    throw std::system_error(std::make_error_code(std::errc::invalid_argument),
                            fmt::format("{} {}", path, what_it_is(facts.st_mode)));
  }
  RunningChecksum sum;
  std::array<std::byte, 1 << 16> buffer;
  while (true) {
    const ssize_t size = read(file.get(), buffer.data(), buffer.size());
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) fail();
    if (size == 0) return sum.value();
    sum.add(std::span(buffer).first(static_cast<std::size_t>(size)));
  }
}

std::string own_version() {
  return DSTRAIN_VERSION;
}

std::string own_build_id() {
  return checksum_text(hash_of_file("/proc/self/exe"));
}

}  // namespace dstrain
