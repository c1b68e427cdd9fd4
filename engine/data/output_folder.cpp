#include "engine/data/output_folder.h"

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "engine/base/write_failure.h"
#include "engine/data/disk_error.h"

namespace dstrain {

namespace fs = std::filesystem;

OutputFolder::OutputFolder(const std::string& path) : path_(path) {
  std::error_code error;
  made_here_ = fs::create_directories(path, error);
  if (error || !fs::is_directory(path)) {
    throw DiskError(
        describe_write_failure("create the folder", path, error ? error.value() : ENOTDIR));
  }
}

OutputFolder::~OutputFolder() {
  std::error_code ignored;
  if (made_here_) {
    fs::remove(path_, ignored);  // does nothing to a folder that holds something
  }
}

std::string OutputFolder::operator/(const char* name) const {
  return (fs::path(path_) / name).string();
}

}  // namespace dstrain
