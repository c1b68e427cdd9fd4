#include "cmd/launch/build_id.h"

#include <array>
#include <cerrno>
#include <filesystem>
#include <span>
#include <stdexcept>
#include <system_error>

#include <fmt/format.h>
#include <unistd.h>

#include "engine/base/checksum.h"
#include "engine/base/regular_file.h"

namespace dstrain {

std::uint64_t hash_of_file(const std::string& path) {
  const OpenedFile opened = open_regular_file(path);
  if (!opened.file) throw std::runtime_error(fmt::format("{}: {}", path, opened.why));
  RunningChecksum sum;
  std::array<std::byte, 1 << 16> buffer;
  while (true) {
    const ssize_t size = read(opened.file.get(), buffer.data(), buffer.size());
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) throw std::system_error(errno, std::generic_category(), path);
    if (size == 0) return sum.value();
    sum.add(std::span(buffer).first(static_cast<std::size_t>(size)));
  }
}

std::string own_version() {
  return DSTRAIN_VERSION;
}

std::string own_program() {
  return std::filesystem::read_symlink("/proc/self/exe");
}

std::string own_build_id() {
  return checksum_text(hash_of_file("/proc/self/exe"));
}

}  // namespace dstrain
