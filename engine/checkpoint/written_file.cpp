#include "engine/checkpoint/written_file.h"

#include <cerrno>
#include <cstring>
#include <system_error>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>

#include "engine/base/file_descriptor.h"
#include "engine/base/regular_file.h"

namespace dstrain {

namespace fs = std::filesystem;

fs::path part_path(const fs::path& path) {
  return path.parent_path() / fmt::format(".{}.part", path.filename().string());
}

void ByteTally::add(std::span<const std::byte> bytes) {
  checksum_.add(bytes);
  bytes_ += static_cast<std::int64_t>(bytes.size());
  progress_(static_cast<std::int64_t>(bytes.size()));
}

WrittenFile ByteTally::of(const fs::path& path) const {
  return {.name = path.filename().string(), .bytes = bytes_, .checksum = checksum_.value()};
}

bool holds_bytes(const fs::path& path, const WrittenFile& expected, const ByteProgress& progress) {
  constexpr std::size_t kStep = std::size_t{8} << 20;
  const FileDescriptor file = open_regular_file(path.string()).file;
  if (!file) {
    return false;
  }
  (void)::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);  // from the disk, not the cache
  (void)::posix_fadvise(file.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
  std::vector<std::byte> buffer(kStep);
  RunningChecksum found;
  std::int64_t bytes = 0;
  while (true) {
    const ssize_t count = ::read(file.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      throw StorageError(fmt::format("cannot read {} back: {}", path.string(), strerror(errno)));
    }
    if (count == 0) {
      return bytes == expected.bytes && found.value() == expected.checksum;
    }
    found.add({buffer.data(), static_cast<std::size_t>(count)});
    bytes += count;
    progress(count);
  }
}

WrittenFile write_checked(const DurableFiles& files,
                          const fs::path& path,
                          const ByteProgress& progress,
                          const std::function<WrittenFile(const fs::path& part)>& write) {
  const fs::path part = part_path(path);
  try {
    WrittenFile written = write(part);
    written.name = path.filename().string();
    if (!holds_bytes(part, written, progress)) {
      throw StorageError(fmt::format("{}: the disk does not return the {} bytes that were written",
                                     part.string(), written.bytes));
    }
    files.rename(part, path);
    files.sync_folder(path.parent_path().empty() ? "." : path.parent_path());
    return written;
  } catch (const std::exception&) {
    std::error_code ignored;  // the error that is on its way matters more
    fs::remove(part, ignored);
    throw;
  }
}

}  // namespace dstrain
