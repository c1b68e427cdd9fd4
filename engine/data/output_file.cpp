#include "engine/data/output_file.h"

#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/write_failure.h"
#include "engine/data/disk_error.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{4} << 20;

}  // namespace

OutputFile::OutputFile(std::string final_path)
    : final_path_(std::move(final_path)), partial_path_(partial_path(final_path_)) {
  open_locked();
  if (::ftruncate(file_.get(), 0) != 0) {
    fail("empty");
  }
}

OutputFile::OutputFile(std::string final_path, std::int64_t num_bytes)
    : final_path_(std::move(final_path)),
      partial_path_(partial_path(final_path_)),
      kept_(true),
      written_(num_bytes) {
  open_locked();
  struct stat facts {};
  if (::fstat(file_.get(), &facts) != 0 || facts.st_size < num_bytes) {
    throw DiskError(fmt::format("{}: has {} bytes, but {} were recorded; --overwrite starts over",
                                partial_path_, facts.st_size, num_bytes));
  }
  if (::ftruncate(file_.get(), num_bytes) != 0 || ::lseek(file_.get(), num_bytes, SEEK_SET) < 0) {
    fail("shorten");
  }
}

// The file is not truncated on opening: it may be another writer's, which only the lock shows.
void OutputFile::open_locked() {
  file_ = FileDescriptor(::open(partial_path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  if (!file_) {
    fail("create");
  }
  if (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) {
      throw DiskError(fmt::format("{}: another process is writing it", partial_path_));
    }
    fail("lock");
  }
  buffer_.reserve(kBufferBytes);
}

OutputFile::~OutputFile() {
  if (!published_ && !kept_) {
    ::unlink(partial_path_.c_str());  // before the lock is let go
  }
}

void OutputFile::append(std::span<const std::byte> bytes) {
  if (buffer_.size() + bytes.size() > kBufferBytes) {
    flush();
  }
  if (bytes.size() >= kBufferBytes) {
    write_out(bytes);
  } else {
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  }
}

void OutputFile::shrink_to(std::int64_t num_bytes) {
  check(num_bytes >= 0 && num_bytes <= this->num_bytes(), "{}: shrink from {} bytes to {}",
        partial_path_, this->num_bytes(), num_bytes);
  if (num_bytes >= written_) {
    buffer_.resize(static_cast<std::size_t>(num_bytes - written_));
    return;
  }
  buffer_.clear();
  written_ = num_bytes;
  if (::ftruncate(file_.get(), written_) != 0 || ::lseek(file_.get(), written_, SEEK_SET) < 0) {
    fail("shorten");
  }
}

void OutputFile::sync() {
  flush();
  if (::fsync(file_.get()) != 0) {
    fail("sync");
  }
}

void OutputFile::keep() {
  sync();
  kept_ = true;
}

void OutputFile::publish() {
  check(buffer_.empty(), "{}: published with unwritten bytes", partial_path_);
  if (::rename(partial_path_.c_str(), final_path_.c_str()) != 0) {
    fail("rename");
  }
  published_ = true;
}

void OutputFile::flush() {
  write_out(buffer_);
  buffer_.clear();
}

void OutputFile::write_out(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(file_.get(), bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      fail("write");
    }
    written_ += count;
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

void OutputFile::fail(const char* what) const {
  const int error = errno;
  std::string text = describe_write_failure(what, partial_path_, error);
  if (written_ > 0) {
    text +=
        fmt::format("; {:.1f} MiB of it were written", static_cast<double>(written_) / 1048576.0);
  }
  throw DiskError(text);
}

std::string partial_path(const std::string& final_path) {
  return final_path + ".partial";
}

void sync_folder(const std::string& folder) {
  const FileDescriptor file(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (file) {  // a folder that cannot be synced (some network file systems) is not an error
    ::fsync(file.get());
  }
}

}  // namespace dstrain
