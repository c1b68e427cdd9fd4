// The two ways in which a checkpoint can fail: it cannot be used, or it cannot be written.
#pragma once

#include <stdexcept>

namespace dstrain {

/// A checkpoint that was asked for cannot be used. Exit code 5.
class CheckpointError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Writing failed: path, cause, needed and free bytes. Exit code 6.
class StorageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace dstrain
