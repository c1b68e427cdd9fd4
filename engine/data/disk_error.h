// DiskError: writing token files failed (no space, quota, I/O). Exit code 6.
#pragma once

#include <stdexcept>

namespace dstrain {

/// what() is one sentence: the file, what failed, how much space there is.
class DiskError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace dstrain
