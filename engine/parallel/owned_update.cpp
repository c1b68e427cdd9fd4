#include "engine/parallel/owned_update.h"

#include <algorithm>
#include <cmath>

#include "engine/optim/grad_norm.h"

namespace dstrain {
namespace {

/// Of a region that holds the unit, only elements `range` of the unit.
Tensor part_of(const DataParallelParts& parts, RegionKind kind, int unit, Range range) {
  const Range held = parts.memory.place(kind, unit).held;
  return parts.context.arena.unit(kind, unit)
      .flat(range.begin - held.begin, range.end - held.begin);
}

Tensor moment_of(
    const DataParallelParts& parts, RegionKind kind, MomentExtent extent, int unit, Range range) {
  switch (extent) {
    case MomentExtent::kNone:
      return {};
    case MomentExtent::kAll:
      return part_of(parts, kind, unit, range);
    case MomentExtent::kNotHiddenMatrices:
      return parts.context.arena.unit(kind, unit);
  }
  return {};
}

/// The root of the sum of squares over all gradients of all ranks' states, unscaled.
double gradient_norm(const DataParallelParts& parts,
                     const std::vector<UnitState>& states,
                     Ownership ownership) {
  const ExecContext& context = parts.context;
  context.ops.zero(parts.norm_total, context.compute);
  for (const UnitState& state : states) {
    if (state.range.size() > 0) {
      context.ops.sum_of_squares(state.gradient, parts.norm_total, Write::kAdd, context.compute);
    }
  }
  if (ownership == Ownership::kEachHasASlice) {
    parts.group.all_reduce(parts.norm_total, ReduceOp::kSum, Purpose::kOptimizer, context.compute);
  }
  double sum_of_squares = 0.0;
  context.device.copy_to_host(parts.norm_total, &sum_of_squares, context.compute);
  context.compute.synchronize();
  return std::sqrt(sum_of_squares);
}

}  // namespace

std::vector<UnitState> owned_states(const DataParallelParts& parts) {
  const Arena& arena = parts.context.arena;
  const MemoryOptions& options = parts.memory.options();
  std::vector<UnitState> states;
  for (int unit = 0; unit < parts.shards.num_units(); ++unit) {
    const Range owned = parts.memory.owned(unit);
    const std::int64_t numel = parts.shards.numel(unit);
    const Range range{owned.begin, std::max(owned.begin, std::min(owned.end, numel))};
    const std::int64_t size = range.size();
    states.push_back(
        {.unit = unit,
         .range = range,
         .gradient = part_of(parts, RegionKind::kGradients, unit, range),
         .master = arena.master(unit).flat(0, size),
         .first_moment =
             moment_of(parts, RegionKind::kFirstMoment, options.first_moment, unit, range),
         .second_moment =
             moment_of(parts, RegionKind::kSecondMoment, options.second_moment, unit, range),
         .parameters =
             arena.master_is_parameters() ? Tensor{} : arena.owned_parameters(unit).flat(0, size)});
  }
  return states;
}

StepStats update_owned(const DataParallelParts& parts,
                       const std::vector<UnitState>& states,
                       Ownership ownership,
                       const StepParams& params,
                       const Optimizer::UnitUpdated& updated) {
  const double factor = parts.mean_factor / params.loss_scale;
  const double norm = gradient_norm(parts, states, ownership) * factor;
  if (!std::isfinite(norm)) {
    return {.grad_norm = norm, .updated = false};
  }
  const double scale = factor * clip_factor(norm, params.gradient_clipping);
  parts.optimizer.update(parts.context, states,
                         {.learning_rate = params.learning_rate,
                          .beta1 = params.beta1,
                          .beta2 = params.beta2,
                          .update = params.update,
                          .gradient_scale = static_cast<float>(scale),
                          .seed = params.seed},
                         updated);
  return {.grad_norm = norm, .updated = true};
}

void copy_master_to_parameters(const DataParallelParts& parts) {
  const Arena& arena = parts.context.arena;
  if (arena.master_is_parameters()) {
    return;
  }
  for (int unit = 0; unit < parts.shards.num_units(); ++unit) {
    parts.context.ops.cast(arena.master(unit), arena.owned_parameters(unit), parts.context.compute);
  }
}

}  // namespace dstrain
