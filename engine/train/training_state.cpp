#include "engine/train/training_state.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "engine/checkpoint/model_tensors.h"

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

/// The walk over one unit's states.
class UnitStates {
 public:
  UnitStates(const RunPlan& plan,
             int unit,
             StateExtent extent,
             const std::function<void(const StatePart&)>& visit)
      : plan_(plan),
        unit_(unit),
        slice_(extent == StateExtent::kMySlice ? plan.shards.saved_slice(unit)
                                               : plan.memory.owned(unit)),
        saves_(extent == StateExtent::kMySlice),
        visit_(visit) {}

  /// A region that holds all of what this rank owns, padding included, or only the elements that
  /// have this state, one after the other.
  void add(const std::string& state, RegionKind region, MomentExtent elements, bool is_own) {
    const Range owned = plan_.memory.owned(unit_);
    std::int64_t packed = 0;
    for (const PlacedPiece& whole : pieces_with_moment(plan_.shards, unit_, owned, elements)) {
      const PlacedPiece part = clipped(whole, is_own ? owned : slice_);
      const std::int64_t first =
          elements == MomentExtent::kAll ? whole.offset - owned.begin : packed;
      add_part(state, region, part, first + part.offset - whole.offset, is_own);
      packed += whole.piece.flat.size();
    }
  }

  void add_unsent(const SignLayout& signs) {
    add(kWorkersState, RegionKind::kUnsent, MomentExtent::kAll, /*is_own=*/true);
    if (signs.ranks() == 1) return;
    for (const SignLayout::Row& row : signs.rows()) {
      if (row.unit != unit_) continue;
      for (const PlacedPiece& part : plan_.shards.pieces(unit_, row.served)) {
        add_part(kServersState, RegionKind::kServersUnsent, part,
                 row.serving + part.offset - row.served.begin, /*is_own=*/false);
      }
    }
  }

  void add_compressed(const CompressionLayout& compression) {
    for (const CompressionLayout::Row& row : compression.rows()) {
      if (row.unit != unit_) continue;
      for (const PlacedPiece& part : plan_.shards.pieces(unit_, row.range)) {
        add_part(kGradientsState, RegionKind::kUnsent, part, part.offset, /*is_own=*/true);
      }
      if (compression.factors() > 0 && compression.ranks() > 1) {
        add_factor(row, compression.width());
      }
    }
  }

 private:
  /// All data-parallel ranks have the same: the first one saves it.
  void add_factor(const CompressionLayout::Row& row, std::int64_t width) {
    if (saves_ && plan_.mesh.index(kGradientAxes, plan_.rank) != 0) return;
    const ParamDecl& param = plan_.shards.unit(unit_).params[static_cast<std::size_t>(row.param)];
    const bool is_cut = param.local_shape() != param.shape;
    const std::int64_t shards = is_cut ? plan_.mesh.degree(Axis::kTensor) : 1;
    const std::int64_t shard = is_cut ? plan_.mesh.index(Axis::kTensor, plan_.rank) : 0;
    const std::int64_t size = width * row.columns;
    visit_({.state = kFactorState,
            .piece = {.tensor = kFactorPrefix + param.name,
                      .shape = {shards * width, row.columns},
                      .box_start = {shard * width, 0},
                      .box_extent = {width, row.columns},
                      .flat = {0, size}},
            .region = RegionKind::kConstants,
            .unit = unit_,
            .begin = row.right,
            .end = row.right + size,
            .may_be_absent = true,
            .is_factor = true});
  }

  void add_part(const std::string& state,
                RegionKind region,
                const PlacedPiece& part,
                std::int64_t at,
                bool is_own) {
    const std::int64_t size = part.piece.flat.size();
    const ParamDecl& param = plan_.shards.unit(unit_).params[static_cast<std::size_t>(part.param)];
    if (size == 0 || (saves_ && !param.counts())) return;  // another rank saves it
    const bool is_parameter = region == RegionKind::kMaster && !plan_.memory.has_master(unit_);
    visit_({.state = state,
            .piece = part.piece,
            .region = region,
            .unit = unit_,
            .begin = at,
            .end = at + size,
            .dtype = plan_.memory.dtype(is_parameter ? RegionKind::kParameters : region),
            .is_own = is_own,
            .may_be_absent =
                region != RegionKind::kMaster && (is_own || region == RegionKind::kServersUnsent)});
  }

  const RunPlan& plan_;
  const int unit_;
  const Range slice_;
  const bool saves_;
  const std::function<void(const StatePart&)>& visit_;
};

/// Every rank of a layer has all of them: the first one saves them.
void for_each_untrained(const RunPlan& plan,
                        StateExtent extent,
                        const std::function<void(const StatePart&)>& visit) {
  const bool is_first = plan.mesh.index(kGradientAxes, plan.rank) == 0 &&
                        plan.mesh.index(Axis::kTensor, plan.rank) == 0;
  if (extent == StateExtent::kMySlice && !is_first) return;
  for (const UntrainedDecl& tensor : plan.blueprint.untrained()) {
    const std::int64_t size = tensor.shape.numel();
    visit({.state = kParameterState,
           .piece = piece_of({tensor.name, tensor.shape}, {0, size}),
           .region = RegionKind::kConstants,
           .unit = tensor.unit,
           .begin = 0,
           .end = size,
           .buffer = tensor.buffer});
  }
}

}  // namespace

OwnStates OwnStates::after(const RunPlan& plan, std::int64_t updates) {
  const OptimizerConfig& optimizer = plan.update.optimizer;
  const MemoryOptions& options = plan.memory.options();
  return {.unsent =
              (options.signs || options.compression) &&
              count_travel(optimizer, plan.update.compression, GradientTravel::kCoded, updates) > 0,
          .alone = plan.memory.options().updates_alone && updates > optimizer.freeze_step};
}

OwnStates OwnStates::all(const RunPlan& plan) {
  const MemoryOptions& options = plan.memory.options();
  return {.unsent = options.signs.has_value() || options.compression.has_value(),
          .alone = plan.memory.options().updates_alone};
}

std::string own_state_name(const std::string& state, int rank) {
  return fmt::format("{}.{}", state, rank);
}

void for_each_state_part(const RunPlan& plan,
                         StateExtent extent,
                         OwnStates own,
                         const std::function<void(const StatePart&)>& visit) {
  const Moments& moments = plan.moments;
  const MemoryOptions& options = plan.memory.options();
  for (int unit = 0; unit < plan.shards.num_units(); ++unit) {
    const bool is_left_out =
        extent == StateExtent::kMySlice && !plan.shards.unit(unit).trained && !plan.saves_frozen;
    if (is_left_out) continue;
    UnitStates states(plan, unit, extent, visit);
    states.add(kParameterState, RegionKind::kMaster, MomentExtent::kAll, false);
    if (!plan.shards.unit(unit).trained) continue;
    states.add(moments.first_name, RegionKind::kFirstMoment, moments.first, own.alone);
    states.add(moments.second_name, RegionKind::kSecondMoment, moments.second, false);
    if (options.third_moment && (options.updates_alone ? own.alone : own.unsent)) {
      states.add(moments.third_name, RegionKind::kThirdMoment, MomentExtent::kAll, own.alone);
    }
    if (own.unsent && options.signs) states.add_unsent(*options.signs);
    if (own.unsent && options.compression) states.add_compressed(*options.compression);
  }
  for_each_untrained(plan, extent, visit);
}

void for_each_state(const Engine& engine,
                    StateExtent extent,
                    OwnStates own,
                    const std::function<void(const StatePart&, CheckpointTensor)>& visit) {
  const Arena& arena = engine.arena();
  const RunPlan& plan = engine.plan();
  const int rank = plan.mesh.index(kGradientAxes, plan.rank);
  for_each_state_part(plan, extent, own, [&](const StatePart& part) {
    const bool is_buffer = part.region == RegionKind::kConstants;
    const Tensor held = is_buffer
                            ? arena.buffer(part.is_factor ? plan.compression.factors : part.buffer)
                        : part.region == RegionKind::kMaster ? arena.master(part.unit)
                                                             : arena.unit(part.region, part.unit);
    Device& device =
        is_buffer ? engine.context().device : engine.context().site(part.region, part.unit).device;
    visit(part,
          {part.is_own ? own_state_name(part.state, rank) : part.state, part.piece,
           held.flat(part.begin, part.end), device.kind() == DeviceKind::kCpu ? nullptr : &device});
  });
}

std::vector<CheckpointTensor> state_tensors(const Engine& engine,
                                            StateExtent extent,
                                            OwnStates own) {
  std::vector<CheckpointTensor> tensors;
  for_each_state(engine, extent, own, [&](const StatePart& /*part*/, CheckpointTensor tensor) {
    tensors.push_back(std::move(tensor));
  });
  return tensors;
}

std::vector<CheckpointTensor> parameter_tensors(const Engine& engine) {
  std::vector<CheckpointTensor> tensors = state_tensors(engine, StateExtent::kEverything);
  std::erase_if(tensors,
                [](const CheckpointTensor& tensor) { return tensor.state != kParameterState; });
  return tensors;
}

}  // namespace dstrain
