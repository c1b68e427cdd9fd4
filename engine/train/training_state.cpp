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

void for_each_state_part(const RunPlan& plan,
                         StateExtent extent,
                         const std::function<void(const StatePart&)>& visit) {
  for (int unit = 0; unit < plan.shards.num_units(); ++unit) {
    const Range owned = plan.memory.owned(unit);
    const Range wanted = extent == StateExtent::kMySlice ? plan.shards.saved_slice(unit) : owned;
    // A region holds all of `owned`, padding included, or only the elements that have this state,
    // one after the other.
    const auto add = [&](const std::string& state, RegionKind region, MomentExtent elements) {
      std::int64_t packed = 0;
      for (const PlacedPiece& whole : pieces_with_moment(plan.shards, unit, owned, elements)) {
        const PlacedPiece part = clipped(whole, wanted);
        const std::int64_t size = part.piece.flat.size();
        const ParamDecl& param =
            plan.shards.unit(unit).params[static_cast<std::size_t>(whole.param)];
        const bool others = extent == StateExtent::kMySlice && !param.counts();  // another saves it
        if (size > 0 && !others) {
          const std::int64_t first =
              elements == MomentExtent::kAll ? whole.offset - owned.begin : packed;
          const std::int64_t at = first + part.offset - whole.offset;
          const bool is_parameter = region == RegionKind::kMaster && !plan.memory.has_master(unit);
          visit({.state = state,
                 .piece = part.piece,
                 .region = region,
                 .unit = unit,
                 .begin = at,
                 .end = at + size,
                 .dtype = plan.memory.dtype(is_parameter ? RegionKind::kParameters : region)});
        }
        packed += whole.piece.flat.size();
      }
    };
    add("parameter", RegionKind::kMaster, MomentExtent::kAll);
    add(plan.moments.first_name, RegionKind::kFirstMoment, plan.moments.first);
    add(plan.moments.second_name, RegionKind::kSecondMoment, plan.moments.second);
  }
}

std::vector<CheckpointTensor> state_tensors(const Engine& engine, StateExtent extent) {
  const Arena& arena = engine.arena();
  std::vector<CheckpointTensor> tensors;
  for_each_state_part(engine.plan(), extent, [&](const StatePart& part) {
    const Tensor held = part.region == RegionKind::kMaster ? arena.master(part.unit)
                                                           : arena.unit(part.region, part.unit);
    Device& device = engine.context().site(part.region, part.unit).device;
    tensors.push_back({part.state, part.piece, held.flat(part.begin, part.end),
                       device.kind() == DeviceKind::kCpu ? nullptr : &device});
  });
  return tensors;
}

}  // namespace dstrain
