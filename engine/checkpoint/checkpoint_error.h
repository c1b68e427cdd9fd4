// The ways in which a checkpoint can fail: it cannot be used (because it does not fit, or because
// it is damaged), it cannot be written, or the folder it belongs into is no longer this run's.
#pragma once

#include <stdexcept>

#include "engine/base/storage_error.h"

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

/// The run's folder belongs to another run: since before this one, or taken over. Exit code 3.
class FolderInUse : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The run's folder was deleted, moved or replaced under it. Exit code 6; unlike a StorageError,
/// checkpoint.on_save_failure does not let it pass: no later save can be where it should.
class FolderGone : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace dstrain
