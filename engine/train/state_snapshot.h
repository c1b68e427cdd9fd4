// StateSnapshot: a copy of what this rank saves, in host memory reserved once, so that training can
// continue while the copy is written.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/checkpoint/checkpoint_store.h"
#include "engine/train/engine.h"

namespace dstrain {

/// The host memory that the snapshot of the rank that `plan` is for takes, to the byte: room for
/// all that a save may have to write.
std::int64_t snapshot_bytes(const RunPlan& plan);

class StateSnapshot {
 public:
  /// Reserves the memory; throws OutOfMemory.
  explicit StateSnapshot(Engine& engine);

  /// Copies the state as it is now, after so many updates, and waits for the copy. Valid until the
  /// next call.
  std::span<const CheckpointTensor> take(std::int64_t updates);
  [[nodiscard]] std::int64_t bytes() const { return memory_.bytes(); }

 private:
  Engine& engine_;
  DeviceMemory memory_;
  std::vector<CheckpointTensor> copies_;  ///< in this memory
};

}  // namespace dstrain
