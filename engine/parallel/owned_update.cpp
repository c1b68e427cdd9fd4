#include "engine/parallel/owned_update.h"

#include <algorithm>
#include <cmath>

#include "engine/base/fnv_hash.h"
#include "engine/optim/grad_norm.h"
#include "kernels/core/caller_stream.h"
#include "kernels/core/plain_nan.h"

namespace dstrain {
namespace {

/// The elements `range` of the unit, in a region that holds the unit.
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

}  // namespace

OwnedUpdate::OwnedUpdate(const DataParallelParts& parts, Stream& collectives)
    : parts_(parts),
      collectives_(collectives),
      gathered_(static_cast<std::size_t>(parts.shards.num_units())),
      counted_(parts.groups.groups().size()) {
  std::vector<OwnedRange> owned;  // whose states lie elsewhere
  for (int unit = 0; unit < parts.shards.num_units(); ++unit) {
    if (!parts.shards.unit(unit).trained) continue;
    const UnitState state = declare_state(unit);
    find_replicas(state);
    if (!parts.memory.states_are_apart(unit))
      states_.push_back(state);
    else
      owned.push_back({.range = state.range, .noise_key = state.noise_key});
  }
  if (parts.memory.states_are_apart()) {
    streamed_ = std::make_unique<StreamedUpdate>(parts, std::move(owned));
  }
}

UnitState OwnedUpdate::declare_state(int unit) const {
  const Arena& arena = parts_.context.arena;
  const MemoryOptions& options = parts_.memory.options();
  const Range owned = parts_.memory.owned(unit);
  const std::int64_t numel = parts_.shards.numel(unit);
  const Range range{owned.begin, std::max(owned.begin, std::min(owned.end, numel))};
  UnitState state{.unit = unit,
                  .range = range,
                  .noise_key = fnv_hash<std::uint32_t>(parts_.shards.unit(unit).name)};
  if (parts_.memory.states_are_apart(unit)) {
    return state;
  }
  state.gradient = part_of(parts_, RegionKind::kGradients, unit, range);
  state.master = arena.master(unit).flat(0, range.size());
  state.first_moment =
      moment_of(parts_, RegionKind::kFirstMoment, options.first_moment, unit, range);
  state.second_moment =
      moment_of(parts_, RegionKind::kSecondMoment, options.second_moment, unit, range);
  if (options.third_moment) {
    state.third_moment = part_of(parts_, RegionKind::kThirdMoment, unit, range);
  }
  if (!arena.master_is_parameters(unit)) {
    state.parameters = arena.owned_parameters(unit).flat(0, range.size());
  }
  return state;
}

/// Finds for each parameter whether its gradient is to be summed over the ranks that hold it, and
/// whether this rank is the one that counts it. Adjacent ranges that are counted are joined.
void OwnedUpdate::find_replicas(const UnitState& state) {
  Range counted{state.range.begin, state.range.begin};
  const auto flush = [&] {
    if (counted.size() > 0) {
      counted_[parts_.groups.index_of(state.unit)].push_back(
          part_of(parts_, RegionKind::kGradients, state.unit, counted));
    }
  };
  for (const PlacedPiece& placed : parts_.shards.pieces(state.unit, state.range)) {
    const UnitDecl& decl = parts_.shards.unit(state.unit);
    const ParamDecl& param = decl.params[static_cast<std::size_t>(placed.param)];
    const Range range{placed.offset, placed.offset + placed.piece.flat.size()};
    if (param.counts()) {
      if (counted.end != range.begin) {
        flush();
        counted.begin = range.begin;
      }
      counted.end = range.end;
    }
    const auto sum_over = [&](Communicator* group) {
      check(group != nullptr, "{} has copies and there is no group of them", placed.piece.tensor);
      Replicas& replicas = replicas_of(group);
      replicas.gradients.push_back(part_of(parts_, RegionKind::kGradients, state.unit, range));
      replicas.elements += range.size();
    };
    if (param.share.partial_gradient) {
      const bool everywhere =
          parts_.tensor_group != nullptr && parts_.tensor_group->size() == param.share.copies;
      sum_over(everywhere ? parts_.tensor_group : parts_.shared_heads_group);
    }
    if (param.tied_across_stages) {
      sum_over(parts_.tied_group);
    }
  }
  flush();
}

OwnedUpdate::Replicas& OwnedUpdate::replicas_of(Communicator* group) {
  const auto found = std::find_if(replicas_.begin(), replicas_.end(),
                                  [&](const Replicas& r) { return r.group == group; });
  if (found != replicas_.end()) {
    return *found;
  }
  replicas_.push_back({group, {}});
  return replicas_.back();
}

void OwnedUpdate::sum_replicas(const Replicas& replicas) {
  const ExecContext& context = parts_.context;
  const Tensor packed = parts_.replica_gradients.flat(0, replicas.elements);
  const auto each = [&](auto&& work) {
    std::int64_t at = 0;
    for (const Tensor& gradient : replicas.gradients) {
      work(gradient, packed.flat(at, at + gradient.numel()));
      at += gradient.numel();
    }
  };
  each([&](Tensor gradient, Tensor place) { context.ops.cast(gradient, place, context.compute); });
  replicas.group->all_reduce(packed, ReduceOp::kSum, Purpose::kReplica, context.compute);
  each([&](Tensor gradient, Tensor place) { context.ops.cast(place, gradient, context.compute); });
}

/// The root of the sum of squares over all gradients of all ranks, unscaled. Units of another group
/// are divided among another set of ranks, so each group is summed on its own. Where every
/// data-parallel rank has gradients of its own, the mean of their sums of squares takes part.
double OwnedUpdate::gradient_norm(GradientTravel travel) {
  const ExecContext& context = parts_.context;
  double total = 0.0;
  for (std::size_t index = 0; index < counted_.size(); ++index) {
    context.ops.zero(parts_.norm_total, context.compute);
    for (const ConstTensor& gradient : counted_[index]) {
      context.ops.sum_of_squares(gradient, parts_.norm_total, Write::kAdd, context.compute);
    }
    double sum_of_squares = 0.0;
    context.device.copy_to_host(parts_.norm_total, &sum_of_squares, context.compute);
    context.compute.synchronize();
    const UnitGroup& group = parts_.groups.groups()[index];
    const bool is_summed = travel == GradientTravel::kSummed;
    Communicator* const others = is_summed ? group.norm : parts_.world;
    if (others != nullptr) {
      CallerStream host;
      others->all_reduce({&sum_of_squares, DType::kF64, Shape{1}}, ReduceOp::kSum,
                         Purpose::kOptimizer, host);
    }
    total += is_summed ? sum_of_squares : sum_of_squares / group.replicas->size();
  }
  return std::sqrt(total);
}

/// Gathers the whole unit from every rank's slice, where this rank holds more than its own.
void OwnedUpdate::gather(int unit) {
  const Range held = parts_.memory.place(RegionKind::kParameters, unit).held;
  if (held.size() == parts_.memory.owned(unit).size()) {
    return;
  }
  const Arena& arena = parts_.context.arena;
  collectives_.wait(parts_.context.compute.record());
  order_after(unit, collectives_);
  parts_.group(unit).all_gather(arena.owned_parameters(unit),
                                arena.unit(RegionKind::kParameters, unit), Purpose::kParameter,
                                collectives_);
  gathered_[static_cast<std::size_t>(unit)] = collectives_.record();
}

void OwnedUpdate::order_after(int unit, Stream& stream) {
  if (streamed_ != nullptr) streamed_->order_after(unit, stream);
}

Event OwnedUpdate::updated(int unit) const {
  return streamed_ == nullptr ? Event{} : streamed_->updated(unit);
}

void OwnedUpdate::wait_for(int unit) {
  const Event& gathered = gathered_.at(static_cast<std::size_t>(unit));
  if (streamed_ != nullptr && gathered.stream == nullptr) {
    streamed_->order_after(unit, parts_.context.compute);
  } else {
    parts_.context.compute.wait(gathered);
  }
}

StepStats OwnedUpdate::step(const StepParams& params) {
  double factor = parts_.mean_factor / (params.loss_scale * params.counted_share);
  if (params.travel != GradientTravel::kSummed) {
    factor *= parts_.groups.groups().front().replicas->size();  // of one rank, not of their sum
  }
  return update(params, factor, params.travel);
}

StepStats OwnedUpdate::step_on_mean(const StepParams& params) {
  return update(params, 1.0, GradientTravel::kSummed);
}

/// `factor`: what makes gradients those of the mean loss.
StepStats OwnedUpdate::update(const StepParams& params, double factor, GradientTravel travel) {
  for (const Replicas& replicas : replicas_) {
    sum_replicas(replicas);
  }
  const double norm = plain_nan(gradient_norm(travel) * factor);
  if (!std::isfinite(norm)) {
    return {.grad_norm = norm, .updated = false};
  }
  const double scale = factor * clip_factor(norm, params.gradient_clipping);
  const UpdateParams update_params{.learning_rate = params.learning_rate,
                                   .beta1 = params.beta1,
                                   .beta2 = params.beta2,
                                   .update = params.update,
                                   .gradient_scale = static_cast<float>(scale),
                                   .seed = params.seed};
  if (streamed_ != nullptr) {
    streamed_->update(update_params);
  }
  parts_.optimizer.update(parts_.context.site(Space::kDevice), states_, update_params,
                          [&](std::size_t index) { gather(states_[index].unit); });
  gather_streamed();
  return {.grad_norm = norm, .updated = true};
}

void OwnedUpdate::refresh_parameters() {
  const ExecContext& context = parts_.context;
  if (streamed_ != nullptr) {
    streamed_->refresh_parameters();
  }
  for (const UnitState& state : states_) {
    if (!state.parameters.empty()) {
      parts_.optimizer.refresh_parameters(context.site(Space::kDevice), state);
    }
    gather(state.unit);
  }
  for (int unit = 0; unit < parts_.shards.num_units(); ++unit) {
    if (!parts_.shards.unit(unit).trained) gather(unit);
  }
  gather_streamed();
}

/// Last, since on GPUs the host waits for these units' updates.
void OwnedUpdate::gather_streamed() {
  for (int unit = 0; unit < parts_.shards.num_units(); ++unit) {
    if (parts_.memory.states_are_apart(unit)) gather(unit);
  }
}

}  // namespace dstrain
