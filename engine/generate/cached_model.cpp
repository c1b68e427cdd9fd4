// V vocabulary
#include "engine/generate/cached_model.h"

#include <algorithm>
#include <array>

namespace dstrain {

CachedModel::CachedModel(const ModelSpec& model,
                         const GenerationSizes& sizes,
                         const TransformerStage& stage,
                         const LayerContext& context)
    : model_(model),
      sizes_(sizes),
      stage_(stage),
      context_(context),
      logits_(static_cast<std::size_t>(model.scores ? 1 : model.vocab_size)),
      rotates_as_long_(model.rope_scaling.is_long(sizes.positions)) {
  text_.reserve(static_cast<std::size_t>(sizes.positions));
}

void CachedModel::prepare() {
  stage_.prepare(context_);
}

std::span<const float> CachedModel::extend(std::span<const std::int32_t> tokens,
                                           const std::function<bool()>& before_chunk) {
  const GenerationSizes& sizes = sizes_;
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
  const ConstTensor logits_V = stage_.next_logits(context_);
  context_.device.copy_to_host(logits_V, logits_.data(), context_.compute);
  context_.compute.synchronize();
  return logits_;
}

void CachedModel::rotate_as(std::int64_t text_tokens) {
  const bool is_long = model_.rope_scaling.is_long(text_tokens);
  if (is_long == rotates_as_long_) {
    return;
  }
  context_.extension = {0, text_tokens};
  stage_.prepare(context_);
  rotates_as_long_ = is_long;
  position_ = 0;
}

void CachedModel::forward(std::span<const std::int32_t> tokens) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  context_.extension = {position_, position_ + count};
  context_.device.copy_from_host(tokens.data(), stage_.tokens(context_, 0), context_.compute);
  VisitHooks all_is_whole;
  stage_.forward(context_, all_is_whole, std::array{0});
  context_.compute.synchronize();  // `tokens` is the caller's
  position_ += count;
}

void CachedModel::rewind(std::int64_t position) {
  check(0 <= position && position <= position_, "position {} of {}", position, position_);
  position_ = position;
}

}  // namespace dstrain
