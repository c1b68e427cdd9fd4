// A folder that looks like / to code that reads the kernel's files under it; removed at the end.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include <unistd.h>

namespace dstrain {

class FakeRoot {
 public:
  FakeRoot()
      : path_(std::filesystem::temp_directory_path() /
              ("dstrain-root-" + std::to_string(::getpid()))) {
    std::filesystem::remove_all(path_);
  }
  FakeRoot(const FakeRoot&) = delete;
  FakeRoot& operator=(const FakeRoot&) = delete;
  ~FakeRoot() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  void write(const std::string& file, const std::string& text) const {
    const auto full = path_ / file;
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full) << text;
  }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace dstrain
