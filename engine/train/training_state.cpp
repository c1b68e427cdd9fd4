#include "engine/train/training_state.h"

namespace dstrain {

std::vector<CheckpointTensor> state_tensors(const Engine& engine, StateExtent extent) {
  const RunPlan& plan = engine.plan();
  const Arena& arena = engine.arena();
  std::vector<CheckpointTensor> tensors;
  for (int unit = 0; unit < plan.shards.num_units(); ++unit) {
    const Range range = extent == StateExtent::kMySlice ? plan.shards.slice(unit, plan.here.data)
                                                        : Range{0, plan.shards.numel(unit)};
    const auto add = [&](const char* state, Tensor whole) {
      for (const PlacedPiece& placed : plan.shards.pieces(unit, range)) {
        tensors.push_back({state, placed.piece,
                           whole.flat(placed.offset, placed.offset + placed.piece.flat.size())});
      }
    };
    add("parameter", arena.master(unit));
    add("exp_avg", arena.unit(RegionKind::kExpAvg, unit));
    add("exp_avg_sq", arena.unit(RegionKind::kExpAvgSq, unit));
  }
  return tensors;
}

}  // namespace dstrain
