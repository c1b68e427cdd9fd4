#include "engine/generate/loaded_model.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/checkpoint/checkpoint_error.h"
#include "engine/checkpoint/model_tensors.h"
#include "engine/comm/solo_communicator.h"

namespace dstrain {

LoadedWeights::LoadedWeights(const GenerationPlan& plan,
                             Ops& ops,
                             Device& device,
                             const TensorSource& weights)
    : arena_(plan.blueprint, plan.memory, device),
      parameters_(plan.shards.num_units()),
      alone_(make_solo_communicator("generation", &device)),
      tensor_parallel_(*alone_, /*sequence_parallel=*/false),
      context_{{.ops = ops,
                .device = device,
                .compute = device.compute_stream(),
                .blueprint = plan.blueprint,
                .arena = arena_,
                .parameters = parameters_,
                .experts = &expert_tally_},
               tensor_parallel_} {
  load(plan, weights);
  for (int unit = 0; unit < plan.shards.num_units(); ++unit) {
    parameters_.set(unit, arena_.unit(RegionKind::kParameters, unit));
  }
}

// Weights pass through a few MiB of host memory, part by part, so the model is never held twice.
void LoadedWeights::load(const GenerationPlan& plan, const TensorSource& weights) {
  const auto entries = weights.entries();
  if (std::none_of(entries.begin(), entries.end(),
                   [](const auto& entry) { return entry.state == "parameter"; })) {
    throw CheckpointError("the checkpoint holds no parameters");
  }
  constexpr std::int64_t kElements = std::int64_t{4} << 20;
  const DType dtype = plan.sizes.compute;
  std::vector<std::byte> staging(static_cast<std::size_t>(kElements * size_of(dtype)));
  for (int unit = 0; unit < plan.shards.num_units(); ++unit) {
    const Tensor whole = arena_.unit(RegionKind::kParameters, unit);
    for (PlacedPiece placed : plan.shards.pieces(unit, {0, plan.shards.numel(unit)})) {
      const Range all = placed.piece.flat;
      for (std::int64_t begin = all.begin; begin < all.end; begin += kElements) {
        const std::int64_t end = std::min(begin + kElements, all.end);
        placed.piece.flat = {begin, end};
        weights.read("parameter", placed.piece, {staging.data(), dtype, {end - begin}});
        const std::int64_t at = placed.offset + begin - all.begin;
        context_.device.copy_from_host(staging.data(), whole.flat(at, at + end - begin),
                                       context_.compute);
        context_.compute.synchronize();
      }
    }
  }
  for (const UntrainedDecl& untrained : plan.blueprint.untrained()) {
    std::vector<float> values(static_cast<std::size_t>(untrained.shape.numel()));
    weights.read("parameter",
                 piece_of({untrained.name, untrained.shape}, {0, untrained.shape.numel()}),
                 {values.data(), DType::kF32, untrained.shape});
    context_.device.copy_from_host(values.data(), arena_.buffer(untrained.buffer),
                                   context_.compute);
    context_.compute.synchronize();
  }
}

LoadedModel::LoadedModel(const GenerationPlan& plan,
                         Ops& ops,
                         Device& device,
                         const TensorSource& weights)
    : LoadedWeights(plan, ops, device, weights),
      CachedModel(plan.model, plan.sizes, plan.stage, context()) {
  prepare();
}

}  // namespace dstrain
