#include "engine/model/dropout.h"

#include "kernels/math/philox.h"

namespace dstrain {

std::uint64_t dropout_key(std::uint64_t seed, std::int64_t block, DropoutSite site) {
  constexpr std::uint64_t kStream = 0x64726f706f7574;  // "dropout": initial values have others
  constexpr std::int64_t kSites = 4;
  const auto place = static_cast<std::uint64_t>(block * kSites + static_cast<std::int64_t>(site));
  const auto words = philox(seed, place, kStream);
  return (std::uint64_t{words[0]} << 32) | words[1];
}

StreamDropout::StreamDropout(const LayerShape& shape, DropoutSite site, float probability)
    : probability_(shape.extends_cache() ? 0.0F : probability),
      key_(dropout_key(shape.seed, shape.block, site)),
      sequence_(shape.sequence),
      first_sample_(shape.first_sample) {}

void StreamDropout::apply(const LayerContext& context, int slot, ConstTensor x, Tensor y) const {
  const TensorParallel& tensor = context.tensor_parallel;
  const std::int64_t rows = as_matrix(x).rows;
  context.ops.dropout({.dropout = {.probability = probability_,
                                   .key = key_,
                                   .first_sample = context.buffer(first_sample_, slot)},
                       .sequence = sequence_,
                       .first_row = tensor.splits_tokens() ? tensor.rank() * rows : 0},
                      x, y, context.compute);
}

}  // namespace dstrain
