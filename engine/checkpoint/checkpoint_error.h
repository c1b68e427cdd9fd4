// The ways in which a checkpoint can fail: it cannot be used (because it does not fit, or because
// it is damaged), or it cannot be written.
#pragma once

#include <stdexcept>

namespace dstrain {

/// A checkpoint that was asked for cannot be used. Exit code 5.
class CheckpointError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Its bytes are not those that were written, or cannot be read: an older one may do.
class DamagedCheckpoint : public CheckpointError {
 public:
  using CheckpointError::CheckpointError;
};

/// Writing failed: path, cause, needed and free bytes. Exit code 6.
class StorageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace dstrain
