// V vocabulary
#include "engine/generate/cached_model.h"

#include <algorithm>
#include <array>
#include <utility>

#include "engine/checkpoint/checkpoint_error.h"
#include "engine/checkpoint/model_tensors.h"
#include "engine/comm/solo_communicator.h"

namespace dstrain {

CachedModel::CachedModel(const GenerationPlan& plan, Backend backend, const TensorSource& weights)
    : plan_(plan),
      backend_(std::move(backend)),
      arena_(plan.blueprint, plan.memory, *backend_.device),
      parameters_(plan.shards.num_units()),
      alone_(make_solo_communicator("generation", backend_.device.get())),
      tensor_parallel_(*alone_, /*sequence_parallel=*/false),
      context_{{.ops = *backend_.ops,
                .device = *backend_.device,
                .compute = backend_.device->compute_stream(),
                .blueprint = plan.blueprint,
                .arena = arena_,
                .parameters = parameters_,
                .experts = &expert_tally_},
               tensor_parallel_},
      logits_(static_cast<std::size_t>(plan.model.vocab_size)),
      rotates_as_long_(plan.model.rope_scaling.is_long(plan.sizes.positions)) {
  text_.reserve(static_cast<std::size_t>(plan.sizes.positions));
  load(weights);
  for (int unit = 0; unit < plan_.shards.num_units(); ++unit) {
    parameters_.set(unit, arena_.unit(RegionKind::kParameters, unit));
  }
  plan_.stage.prepare(context_);
}

// Weights pass through a few MiB of host memory, part by part, so the model is never held twice.
void CachedModel::load(const TensorSource& weights) {
  const auto entries = weights.entries();
  if (std::none_of(entries.begin(), entries.end(),
                   [](const auto& entry) { return entry.state == "parameter"; })) {
    throw CheckpointError("the checkpoint holds no parameters");
  }
  constexpr std::int64_t kElements = std::int64_t{4} << 20;
  const DType dtype = plan_.sizes.compute;
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
  for (const UntrainedDecl& untrained : plan_.blueprint.untrained()) {
    std::vector<float> values(static_cast<std::size_t>(untrained.shape.numel()));
    weights.read("parameter",
                 piece_of({untrained.name, untrained.shape}, {0, untrained.shape.numel()}),
                 {values.data(), DType::kF32, untrained.shape});
    context_.device.copy_from_host(values.data(), arena_.buffer(untrained.buffer),
                                   context_.compute);
    context_.compute.synchronize();
  }
}

std::span<const float> CachedModel::extend(std::span<const std::int32_t> tokens,
                                           const std::function<bool()>& before_chunk) {
  const GenerationSizes& sizes = plan_.sizes;
  const auto count = static_cast<std::int64_t>(tokens.size());
  check(count >= 1 && position_ + count <= sizes.positions,
        "{} tokens behind {} of at most {} positions", count, position_, sizes.positions);
  const std::int64_t end = position_ + count;
  text_.resize(static_cast<std::size_t>(position_));
  text_.insert(text_.end(), tokens.begin(), tokens.end());
  rotate_as(end);
  while (position_ < end) {
    if (!before_chunk()) {
      return {};
    }
    const std::int64_t size = std::min(sizes.chunk_tokens, end - position_);
    forward(std::span(text_).subspan(static_cast<std::size_t>(position_),
                                     static_cast<std::size_t>(size)));
  }
  const ConstTensor logits_V = plan_.stage.next_logits(context_);
  context_.device.copy_to_host(logits_V, logits_.data(), context_.compute);
  context_.compute.synchronize();
  return logits_;
}

void CachedModel::rotate_as(std::int64_t text_tokens) {
  const bool is_long = plan_.model.rope_scaling.is_long(text_tokens);
  if (is_long == rotates_as_long_) {
    return;
  }
  context_.extension = {0, text_tokens};
  plan_.stage.prepare(context_);
  rotates_as_long_ = is_long;
  position_ = 0;
}

void CachedModel::forward(std::span<const std::int32_t> tokens) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  context_.extension = {position_, position_ + count};
  context_.device.copy_from_host(tokens.data(), plan_.stage.tokens(context_, 0), context_.compute);
  VisitHooks all_is_whole;
  plan_.stage.forward(context_, all_is_whole, std::array{0});
  context_.compute.synchronize();  // `tokens` is the caller's
  position_ += count;
}

void CachedModel::rewind(std::int64_t position) {
  check(0 <= position && position <= position_, "position {} of {}", position, position_);
  position_ = position;
}

}  // namespace dstrain
