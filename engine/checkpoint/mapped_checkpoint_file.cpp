#include "engine/checkpoint/mapped_checkpoint_file.h"

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/file_descriptor.h"
#include "engine/base/regular_file.h"
#include "engine/checkpoint/checkpoint_error.h"

namespace dstrain {

MappedCheckpointFile::MappedCheckpointFile(std::filesystem::path path) : path_(std::move(path)) {
  const auto fail = [&](const char* what) {
    throw CheckpointError(fmt::format("cannot {} {}: {}", what, path_.string(), strerror(errno)));
  };
  const FileDescriptor file(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) {
    fail("open");
  }
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) {
    fail("look at");
  }
  if (!S_ISREG(status.st_mode)) {
    throw CheckpointError(fmt::format("{} {}", path_.string(), what_it_is(status.st_mode)));
  }
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0) {
    return;  // nothing to map; mmap refuses a length of 0
  }
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (data == MAP_FAILED) {
    fail("map");
  }
  // Checksums and copies walk forwards: let the kernel read ahead.
  (void)::madvise(data, size, MADV_SEQUENTIAL);
  bytes_ = {static_cast<const std::byte*>(data), size};
}

MappedCheckpointFile::~MappedCheckpointFile() {
  if (!bytes_.empty()) {
    ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  }
}

void MappedCheckpointFile::release(std::span<const std::byte> part) const {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(part.data()) / page * page;
  const auto end = reinterpret_cast<std::uintptr_t>(part.data() + part.size());
  if (begin < end) {  // advice: if it is not taken, more memory is used
    (void)::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
  }
}

}  // namespace dstrain
