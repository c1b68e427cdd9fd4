#include "cmd/build_id.h"

#include <array>
#include <cerrno>
#include <span>
#include <system_error>

#include <fcntl.h>
#include <unistd.h>

#include "engine/checkpoint/checksum.h"
#include "launcher/file_descriptor.h"

namespace dstrain {

std::uint64_t hash_of_file(const std::string& path) {
  const auto fail = [&] { throw std::system_error(errno, std::generic_category(), path); };
  const launcher::FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) fail();
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
