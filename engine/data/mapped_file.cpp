#include "engine/data/mapped_file.h"

#include <algorithm>
#include <cerrno>
#include <system_error>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/file_descriptor.h"
#include "engine/base/regular_file.h"
#include "engine/config/config_error.h"

namespace dstrain {
namespace {

[[noreturn]] void fail(const std::string& path, const char* what) {
  const int error = errno;
  throw ConfigError(
      fmt::format("{}: cannot {}: {}", path, what, std::generic_category().message(error)));
}

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0 && errno == ENXIO) {
    throw ConfigError(
        fmt::format("{}: {}, which token files have to be", path, what_it_is(S_IFSOCK)));
  }
  if (file.get() < 0) {
    fail(path, "open it");
  }
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) {
    fail(path, "ask for its size");
  }
  if (!S_ISREG(info.st_mode)) {
    throw ConfigError(
        fmt::format("{}: {}, which token files have to be", path, what_it_is(info.st_mode)));
  }
  num_bytes_ = info.st_size;
  if (num_bytes_ == 0) {
    return;  // nothing to map: bytes() is empty
  }
  void* address =
      ::mmap(nullptr, static_cast<std::size_t>(num_bytes_), PROT_READ, MAP_SHARED, file.get(), 0);
  if (address == MAP_FAILED) {
    fail(path, "map it into memory");
  }
  data_ = static_cast<const std::byte*>(address);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    ::munmap(const_cast<std::byte*>(data_), static_cast<std::size_t>(num_bytes_));
  }
}

// madvise() is a hint: where the kernel declines it, reading is slower and nothing else changes.
void MappedFile::expect_sequential_reads() const noexcept {
  if (data_ != nullptr) {
    ::madvise(const_cast<std::byte*>(data_), static_cast<std::size_t>(num_bytes_), MADV_SEQUENTIAL);
  }
}

void MappedFile::expect_random_reads() const noexcept {
  if (data_ != nullptr) {
    ::madvise(const_cast<std::byte*>(data_), static_cast<std::size_t>(num_bytes_), MADV_RANDOM);
  }
}

void MappedFile::will_need(std::int64_t begin, std::int64_t length) const noexcept {
  static const std::int64_t page = ::sysconf(_SC_PAGESIZE);
  const std::int64_t end = std::min(begin + length, num_bytes_);
  begin = begin / page * page;
  if (data_ != nullptr && begin < end) {
    ::madvise(const_cast<std::byte*>(data_) + begin, static_cast<std::size_t>(end - begin),
              MADV_WILLNEED);
  }
}

}  // namespace dstrain
