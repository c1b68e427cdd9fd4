// StateSnapshot: a copy of what this rank saves, in host memory reserved once, so that training can
// continue while the copy is written.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/checkpoint/checkpoint_store.h"
#include "engine/train/engine.h"

namespace dstrain {

/// The host memory that the snapshot of the rank that `plan` is for takes, to the byte.
std::int64_t snapshot_bytes(const RunPlan& plan);

class StateSnapshot {
 public:
  /// Reserves the memory; throws OutOfMemory.
  explicit StateSnapshot(Engine& engine);

  /// Copies the state as it is now, and waits for the copy. Valid until the next call.
  std::span<const CheckpointTensor> take();
  [[nodiscard]] std::int64_t bytes() const { return memory_.bytes(); }

 private:
  Engine& engine_;
  DeviceMemory memory_;
  std::vector<CheckpointTensor> from_;  ///< in the engine's memory
  std::vector<CheckpointTensor> to_;    ///< in this one
};

}  // namespace dstrain
