// ShownData: a run's data to be looked at without starting it: JSON lines become samples in a
// folder that goes again.
#pragma once

#include <filesystem>
#include <string>

#include "engine/config/config.h"

namespace dstrain {

class ShownData {
 public:
  /// Throws ConfigError.
  explicit ShownData(const Config& config);

  /// With the prefixes of token files alone.
  [[nodiscard]] const DataConfig& data() const { return data_; }

 private:
  struct Folder {
    Folder() = default;
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;
    ~Folder();
    std::filesystem::path path{};  ///< empty: none was needed
  };
  Folder folder_;
  DataConfig data_;
};

}  // namespace dstrain
