// N tokens of a call, C width, V vocabulary
#include "engine/generate/inference_model.h"

#include <algorithm>
#include <utility>

#include "engine/checkpoint/checkpoint_error.h"

namespace dstrain {

InferenceModel::InferenceModel(const InferencePlan& plan,
                               Backend backend,
                               const TensorSource& weights)
    : plan_(plan),
      backend_(std::move(backend)),
      arena_(plan.blueprint, plan.memory, *backend_.device),
      parameters_(plan.shards.num_units()),
      context_{.ops = *backend_.ops,
               .device = *backend_.device,
               .compute = backend_.device->compute_stream(),
               .blueprint = plan.blueprint,
               .arena = arena_,
               .parameters = parameters_},
      logits_(static_cast<std::size_t>(plan.shape.model.vocab_size)) {
  load(weights);
  for (int unit = 0; unit < plan_.shards.num_units(); ++unit) {
    parameters_.set(unit, arena_.unit(RegionKind::kParameters, unit));
  }
  plan_.blocks.front().prepare(context_);
}

// Through host memory of a few MiB, part by part: neither a source nor this holds a model twice.
void InferenceModel::load(const TensorSource& weights) {
  const auto entries = weights.entries();
  if (std::none_of(entries.begin(), entries.end(),
                   [](const auto& entry) { return entry.state == "parameter"; })) {
    throw CheckpointError("the checkpoint holds no parameters");
  }
  constexpr std::int64_t kElements = std::int64_t{4} << 20;
  const DType dtype = plan_.shape.compute;
  std::vector<std::byte> staging(static_cast<std::size_t>(kElements * size_of(dtype)));
  for (int unit = 0; unit < plan_.shards.num_units(); ++unit) {
    const Tensor whole = arena_.unit(RegionKind::kParameters, unit);
    for (PlacedPiece placed : plan_.shards.pieces(unit, {0, plan_.shards.numel(unit)})) {
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
}

std::span<const float> InferenceModel::extend(std::span<const std::int32_t> tokens,
                                              const std::function<bool()>& before_chunk) {
  const InferenceShape& shape = plan_.shape;
  const auto count = static_cast<std::int64_t>(tokens.size());
  check(count >= 1 && position_ + count <= shape.positions,
        "{} tokens behind {} of at most {} positions", count, position_, shape.positions);
  LastToken last;
  for (std::int64_t begin = 0; begin < count; begin += shape.chunk_tokens) {
    if (!before_chunk()) {
      return {};
    }
    const std::int64_t size = std::min(shape.chunk_tokens, count - begin);
    last = forward(tokens.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(size)));
  }
  const ConstTensor x_1C = plan_.final_norm.forward(context_, last.residual, last.delta);
  const Tensor logits_1V = context_.buffer(plan_.logits);
  context_.ops.linear_forward(x_1C, context_.param(plan_.head), {}, logits_1V, context_.compute);
  context_.device.copy_to_host(logits_1V, logits_.data(), context_.compute);
  context_.compute.synchronize();
  return logits_;
}

InferenceModel::LastToken InferenceModel::forward(std::span<const std::int32_t> tokens) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  const Range positions{position_, position_ + count};
  const Tensor tokens_N = context_.buffer(plan_.tokens).rows(0, count);
  const Tensor residual_NC = context_.buffer(plan_.residual).rows(0, count);
  context_.device.copy_from_host(tokens.data(), tokens_N, context_.compute);
  const ConstTensor positions_NC =
      plan_.position.index < 0
          ? ConstTensor{}
          : context_.param(plan_.position).rows(positions.begin, positions.end);
  context_.ops.embedding_forward(tokens_N, context_.param(plan_.table),
                                 {.vocab_size = plan_.shape.model.vocab_size}, positions_NC, count,
                                 residual_NC, context_.compute);
  ConstTensor delta_NC;
  for (const InferenceBlock& block : plan_.blocks) {
    delta_NC = block.forward(context_, positions, residual_NC, delta_NC);
  }
  context_.compute.synchronize();  // `tokens` is the caller's
  position_ = positions.end;
  return {residual_NC.rows(count - 1, count), delta_NC.rows(count - 1, count)};
}

void InferenceModel::rewind(std::int64_t position) {
  check(0 <= position && position <= position_, "position {} of {}", position, position_);
  position_ = position;
}

}  // namespace dstrain
