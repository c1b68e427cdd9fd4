#include "engine/base/mapped_file.h"

#include <algorithm>
#include <cerrno>
#include <system_error>

#include <sys/mman.h>
#include <unistd.h>

#include "engine/base/regular_file.h"

namespace dstrain {

std::string MappedFile::map() {
  const OpenedFile opened = open_regular_file(path_);
  if (!opened.file || opened.bytes == 0) {
    return opened.why;  // of an empty file there is nothing to map
  }
  const auto size = static_cast<std::size_t>(opened.bytes);
  void* const data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, opened.file.get(), 0);
  if (data == MAP_FAILED) {
    return "cannot be mapped into memory: " + std::generic_category().message(errno);
  }
  bytes_ = {static_cast<const std::byte*>(data), size};
  return {};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) {
    ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  }
}

void MappedFile::expect_sequential_reads() const noexcept {
  advise(bytes_, MADV_SEQUENTIAL);
}

void MappedFile::expect_random_reads() const noexcept {
  advise(bytes_, MADV_RANDOM);
}

void MappedFile::will_need(std::int64_t begin, std::int64_t length) const noexcept {
  const std::int64_t end = std::min(begin + length, num_bytes());
  if (begin < end) {
    advise(bytes_.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)),
           MADV_WILLNEED);
  }
}

void MappedFile::release(std::span<const std::byte> part) const noexcept {
  advise(part, MADV_DONTNEED);
}

/// The advice covers whole pages, from the one that `part` begins in.
void MappedFile::advise(std::span<const std::byte> part, int advice) const noexcept {
  static const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<std::uintptr_t>(part.data());
  if (!part.empty()) {
    const std::uintptr_t begin = address / page * page;
    (void)::madvise(reinterpret_cast<void*>(begin), address + part.size() - begin, advice);
  }
}

}  // namespace dstrain
