// OutputFolder: where prepare_data's files go. One that was made for them is gone again if nothing
// came of it.
#pragma once

#include <string>

namespace dstrain {

class OutputFolder {
 public:
  /// Makes it where it is missing. Throws DiskError.
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
