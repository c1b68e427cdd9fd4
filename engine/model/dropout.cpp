#include "engine/model/dropout.h"

#include <algorithm>
#include <cmath>

#include "engine/base/fnv_hash.h"
#include "kernels/math/philox.h"

namespace dstrain {
namespace {

std::uint64_t key_of(std::uint64_t seed, std::uint64_t place, std::uint64_t stream) {
  const auto words = philox(seed, place, stream);
  return (std::uint64_t{words[0]} << 32) | words[1];
}

/// The tokens of the residual stream that this rank has rows of.
Range stream_tokens(const LayerContext& context, std::int64_t rows) {
  const TensorParallel& tensor = context.tensor_parallel;
  const std::int64_t first = tensor.splits_tokens() ? tensor.rank() * rows : 0;
  return {first, first + rows};
}

}  // namespace

std::uint64_t dropout_key(std::uint64_t seed, std::int64_t block, DropoutSite site) {
  constexpr std::uint64_t kStream = 0x64726f706f7574;  // "dropout": initial values have others
  constexpr std::int64_t kSites = 4;
  return key_of(seed, static_cast<std::uint64_t>(block * kSites + static_cast<std::int64_t>(site)),
                kStream);
}

DrawnTokens::DrawnTokens(const LayerShape& shape, std::uint64_t key)
    : key_(key), batch_(shape.batch), first_sample_(shape.first_sample) {
  for (int chunk = 0; chunk < shape.context.chunks(); ++chunk) {
    chunks_.push_back(shape.context.chunk(chunk, shape.sequence));
  }
}

StreamDropout::StreamDropout(const LayerShape& shape, DropoutSite site, float probability)
    : probability_(shape.extends_cache() ? 0.0F : probability),
      tokens_(shape, dropout_key(shape.seed, shape.block, site)) {}

void StreamDropout::apply(const LayerContext& context, int slot, ConstTensor x, Tensor y) const {
  tokens_.for_each_chunk(context, slot, stream_tokens(context, as_matrix(x).rows),
                         [&](const Range& rows, DropoutRows place) {
                           place.dropout.probability = probability_;
                           context.ops.dropout(place, x.rows(rows.begin, rows.end),
                                               y.rows(rows.begin, rows.end), context.compute);
                         });
}

EmbeddingNoise::EmbeddingNoise(const LayerShape& shape) {
  if (shape.extends_cache()) return;
  constexpr std::uint64_t kStream = 0x6e6f697365;  // "noise"
  const auto numbers = static_cast<float>(shape.sequence * shape.model.hidden_size);
  magnitude_ = shape.noise_alpha / std::sqrt(numbers);
  tokens_ = DrawnTokens(shape, key_of(shape.seed, 0, kStream));
}

void EmbeddingNoise::add(const LayerContext& context, int slot, Tensor x) const {
  if (magnitude_ == 0.0F) return;
  tokens_.for_each_chunk(context, slot, stream_tokens(context, as_matrix(x).rows),
                         [&](const Range& rows, const DropoutRows& place) {
                           context.ops.add_noise({.place = place, .magnitude = magnitude_},
                                                 x.rows(rows.begin, rows.end), context.compute);
                         });
}

InputDropout::InputDropout(const LayerShape& shape,
                           std::string_view layer,
                           std::int64_t first_column)
    : probability_(shape.extends_cache() ? 0.0F : shape.adapters.dropout),
      first_token_(shape.tensor.stream * shape.tokens()),
      first_column_(first_column) {
  constexpr std::uint64_t kStream = 0x6c6f7261;  // "lora"
  tokens_ = DrawnTokens(shape, key_of(shape.seed, fnv_hash<std::uint64_t>(layer), kStream));
}

void InputDropout::apply(const LayerContext& context, int slot, ConstTensor x, Tensor y) const {
  tokens_.for_each_chunk(context, slot, {first_token_, first_token_ + as_matrix(x).rows},
                         [&](const Range& rows, DropoutRows place) {
                           place.dropout.probability = probability_;
                           place.first_column = first_column_;
                           context.ops.dropout(place, x.rows(rows.begin, rows.end),
                                               y.rows(rows.begin, rows.end), context.compute);
                         });
}

}  // namespace dstrain
