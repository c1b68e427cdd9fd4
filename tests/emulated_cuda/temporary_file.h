// A unique file name in a folder that does not exist yet; both are removed with the test.
#pragma once

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <unistd.h>

namespace dstrain::test {

class TemporaryFile {
 public:
  TemporaryFile() {
    static std::atomic<int> counter = 0;
    folder_ = std::filesystem::temp_directory_path() /
              ("dstrain_file_" + std::to_string(getpid()) + "_" + std::to_string(counter++));
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  [[nodiscard]] std::string path() const { return (folder_ / "file").string(); }
  void write(const std::string& text) const {
    std::filesystem::create_directories(folder_);
    std::ofstream(path(), std::ios::binary) << text;
  }
  [[nodiscard]] std::vector<std::string> lines() const {
    std::vector<std::string> all;
    std::ifstream file(path());
    for (std::string line; std::getline(file, line);) {
      all.push_back(line);
    }
    return all;
  }

 private:
  std::filesystem::path folder_;
};

}  // namespace dstrain::test
