// TensorPatterns: tensors of a model, named by patterns.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include <fnmatch.h>

namespace dstrain {

struct TensorPatterns {
  /// As a shell reads them, of tensors' names: "blocks.[0-9].*", "*.mlp.*".
  std::vector<std::string> patterns;

  [[nodiscard]] bool covers(const std::string& tensor) const {
    return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
      return fnmatch(pattern.c_str(), tensor.c_str(), 0) == 0;
    });
  }
  bool operator==(const TensorPatterns&) const = default;
};

}  // namespace dstrain
