// The engine's training state as named pieces: what a checkpoint saves and loads.
#pragma once

#include <vector>

#include "engine/checkpoint/checkpoint_store.h"
#include "engine/train/engine.h"

namespace dstrain {

/// Every parameter's master and the optimizer's moments, as views into the engine's memory.
/// kMySlice: this rank's data-parallel slice of each unit, so that the ranks share the writing;
/// kEverything: all that this rank updates, which is what it must load.
enum class StateExtent : std::uint8_t { kMySlice, kEverything };
std::vector<CheckpointTensor> state_tensors(const Engine& engine, StateExtent extent);

}  // namespace dstrain
