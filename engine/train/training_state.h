// The engine's training state as named pieces: what a checkpoint saves and loads.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint_store.h"
#include "engine/train/engine.h"

namespace dstrain {

/// Every parameter's master and the optimizer's moments, as views into the engine's memory.
/// kMySlice: this rank's data-parallel slice of each unit, so that the ranks share the writing;
/// kEverything: all that this rank updates, which is what it must load.
enum class StateExtent : std::uint8_t { kMySlice, kEverything };
std::vector<CheckpointTensor> state_tensors(const Engine& engine, StateExtent extent);

/// One of those tensors, before there is any memory: elements [begin, end) of what this rank
/// updates of a unit. Region kMaster means the parameters themselves where there is no other
/// master.
struct StatePart {
  std::string state;
  Piece piece;
  RegionKind region;
  int unit = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  DType dtype = DType::kF32;
};
void for_each_state_part(const RunPlan& plan,
                         StateExtent extent,
                         const std::function<void(const StatePart&)>& visit);

}  // namespace dstrain
