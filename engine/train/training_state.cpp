#include "engine/train/training_state.h"

#include <algorithm>

namespace dstrain {
namespace {

/// The part of a piece that lies in `range` of its unit.
PlacedPiece clipped(PlacedPiece placed, Range range) {
  const std::int64_t end = placed.offset + placed.piece.flat.size();
  const std::int64_t cut_front =
      std::clamp(range.begin - placed.offset, std::int64_t{0}, placed.piece.flat.size());
  const std::int64_t cut_back =
      std::clamp(end - range.end, std::int64_t{0}, placed.piece.flat.size() - cut_front);
  placed.offset += cut_front;
  placed.piece.flat.begin += cut_front;
  placed.piece.flat.end -= cut_back;
  return placed;
}

}  // namespace

std::vector<CheckpointTensor> state_tensors(const Engine& engine, StateExtent extent) {
  const RunPlan& plan = engine.plan();
  const Arena& arena = engine.arena();
  std::vector<CheckpointTensor> tensors;
  for (int unit = 0; unit < plan.shards.num_units(); ++unit) {
    const Range owned = plan.memory.owned(unit);
    const Range wanted =
        extent == StateExtent::kMySlice ? plan.shards.slice(unit, plan.here.data) : owned;
    // `memory` holds all of `owned`, padding included, or only those elements of it that have this
    // state, one after the other.
    const auto add = [&](const char* state, MomentExtent elements, auto&& memory) {
      std::int64_t packed = 0;
      for (const PlacedPiece& whole : pieces_with_moment(plan.shards, unit, owned, elements)) {
        const PlacedPiece part = clipped(whole, wanted);
        const std::int64_t size = part.piece.flat.size();
        const ParamDecl& param =
            plan.shards.unit(unit).params[static_cast<std::size_t>(whole.param)];
        const bool others = extent == StateExtent::kMySlice && !param.counts();  // another saves it
        if (size > 0 && !others) {
          const std::int64_t begin =
              elements == MomentExtent::kAll ? whole.offset - owned.begin : packed;
          const std::int64_t at = begin + part.offset - whole.offset;
          tensors.push_back({state, part.piece, memory().flat(at, at + size)});
        }
        packed += whole.piece.flat.size();
      }
    };
    add("parameter", MomentExtent::kAll, [&] { return arena.master(unit); });
    add(plan.moments.first_name, plan.moments.first,
        [&] { return arena.unit(RegionKind::kFirstMoment, unit); });
    add(plan.moments.second_name, plan.moments.second,
        [&] { return arena.unit(RegionKind::kSecondMoment, unit); });
  }
  return tensors;
}

}  // namespace dstrain
