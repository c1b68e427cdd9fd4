#include "engine/checkpoint/durable_files.h"

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include "engine/base/write_failure.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kGatherBytes = std::size_t{1} << 20;
constexpr std::size_t kWriteBytes = std::size_t{64} << 20;  // at most, in one write(2)

[[noreturn]] void fail_at(std::string_view what, const fs::path& path, int error) {
  throw StorageError(describe_write_failure(what, path.string(), error));
}

/// Throws if something else has that name.
bool is_folder(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    return false;
  }
  if (!S_ISDIR(status.st_mode)) {
    throw StorageError(
        fmt::format("cannot create the folder {}: a file has that name", path.string()));
  }
  return true;
}

}  // namespace

DurableFiles::DurableFiles(DiskProbe probe) : probe_(std::move(probe)) {}

void DurableFiles::about_to(DiskChange::Kind kind,
                            const fs::path& path,
                            const fs::path& target) const {
  if (probe_) {
    probe_({.kind = kind, .path = path, .target = target});
  }
}

void DurableFiles::make_folder(const fs::path& folder) const {
  if (is_folder(folder)) {
    return;
  }
  if (const fs::path parent = folder.parent_path(); !parent.empty()) {
    make_folder(parent);
  }
  make_folder_in_parent(folder);
}

void DurableFiles::make_folder_in_parent(const fs::path& folder) const {
  if (is_folder(folder)) {
    return;
  }
  about_to(DiskChange::Kind::kMakeFolder, folder);
  if (::mkdir(folder.c_str(), 0777) != 0 && errno != EEXIST) {
    fail_at("create the folder", folder, errno);
  }
  const fs::path parent = folder.parent_path();
  sync_folder(parent.empty() ? "." : parent);
}

void DurableFiles::write_file(const fs::path& path, std::string_view content) const {
  DurableFile file(*this, path, static_cast<std::int64_t>(content.size()));
  file.write(std::as_bytes(std::span(content)));
  file.finish();
}

void DurableFiles::rename(const fs::path& from, const fs::path& to) const {
  about_to(DiskChange::Kind::kRename, from, to);
  if (::rename(from.c_str(), to.c_str()) != 0) {
    fail_at(fmt::format("rename {} to", from.string()), to, errno);
  }
}

void DurableFiles::sync_folder(const fs::path& folder) const {
  about_to(DiskChange::Kind::kSyncFolder, folder);
  const FileDescriptor file(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!file) {
    fail_at("open the folder", folder, errno);
  }
  // EINVAL means that this file system has nothing to sync for a folder.
  if (::fsync(file.get()) != 0 && errno != EINVAL) {
    fail_at("sync the folder", folder, errno);
  }
}

void DurableFiles::remove_tree(const fs::path& path) const {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(path, error);
  if (status.type() == fs::file_type::not_found) {
    return;
  }
  if (status.type() == fs::file_type::directory) {
    std::vector<fs::path> entries;
    for (fs::directory_iterator entry(path, error), end; !error && entry != end;
         entry.increment(error)) {
      entries.push_back(entry->path());
    }
    if (error) {
      fail_at("list", path, error.value());
    }
    std::sort(entries.begin(), entries.end());
    for (const fs::path& entry : entries) {
      remove_tree(entry);
    }
  }
  about_to(DiskChange::Kind::kRemove, path);
  if (::remove(path.c_str()) != 0 && errno != ENOENT) {
    fail_at("remove", path, errno);
  }
}

DurableFile::DurableFile(const DurableFiles& files, fs::path path, std::int64_t bytes)
    : files_(files), path_(std::move(path)), bytes_(bytes) {
  files_.about_to(DiskChange::Kind::kCreateFile, path_);
  file_ = FileDescriptor(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!file_) {
    fail("create", errno);
  }
  if (bytes_ > 0 && ::fallocate(file_.get(), 0, 0, bytes_) != 0 &&
      (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)) {
    fail("write", errno);  // other causes: this file system cannot reserve, the writes will tell
  }
  pending_.reserve(std::min(kGatherBytes, static_cast<std::size_t>(bytes_)));
}

void DurableFile::write(std::span<const std::byte> data) {
  if (pending_.size() + data.size() > kGatherBytes) {
    write_out(pending_);
    pending_.clear();
    if (data.size() > kGatherBytes) {
      write_out(data);
      return;
    }
  }
  pending_.insert(pending_.end(), data.begin(), data.end());
}

void DurableFile::write_out(std::span<const std::byte> data) {
  while (!data.empty()) {
    files_.about_to(DiskChange::Kind::kWrite, path_);
    const ssize_t count = ::write(file_.get(), data.data(), std::min(data.size(), kWriteBytes));
    if (count < 0) {
      if (errno == EINTR) {
        continue;
      }
      fail("write", errno);
    }
    written_bytes_ += count;
    data = data.subspan(static_cast<std::size_t>(count));
  }
}

void DurableFile::finish() {
  write_out(pending_);
  pending_.clear();
  if (written_bytes_ != bytes_) {
    throw StorageError(fmt::format("{} was to have {} bytes, but {} were written", path_.string(),
                                   bytes_, written_bytes_));
  }
  files_.about_to(DiskChange::Kind::kSyncFile, path_);
  if (::fsync(file_.get()) != 0) {
    fail("sync", errno);
  }
  files_.about_to(DiskChange::Kind::kCloseFile, path_);
  if (::close(file_.release()) != 0) {
    fail("close", errno);  // network file systems report late failures here
  }
}

void DurableFile::fail(std::string_view what, int error) const {
  if (error == ENOSPC || error == EDQUOT) {
    (void)::ftruncate(file_.get(), 0);  // so that "free" counts what this file had taken
  }
  throw StorageError(describe_write_failure(what, path_.string(), error, bytes_));
}

}  // namespace dstrain
