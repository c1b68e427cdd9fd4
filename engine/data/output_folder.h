// OutputFolder: the folder that prepare_data's files go to. If it was made for them, it is removed
// again when none were written.
#pragma once

#include <string>

namespace dstrain {

class OutputFolder {
 public:
  /// Makes the folder where it is missing. Throws DiskError.
  explicit OutputFolder(const std::string& path);
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;
  /// Removes the folder if it was made here and is empty.
  ~OutputFolder();

  [[nodiscard]] const std::string& path() const { return path_; }
  /// The path of a file in it.
  [[nodiscard]] std::string operator/(const char* name) const;

 private:
  std::string path_;
  bool made_here_ = false;
};

}  // namespace dstrain
