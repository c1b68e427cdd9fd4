#include "engine/model/dropout.h"

#include <algorithm>

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
      batch_(shape.batch),
      first_sample_(shape.first_sample) {
  for (int chunk = 0; chunk < shape.context.chunks(); ++chunk) {
    chunks_.push_back(shape.context.chunk(chunk, shape.sequence));
  }
}

void StreamDropout::apply(const LayerContext& context, int slot, ConstTensor x, Tensor y) const {
  const TensorParallel& tensor = context.tensor_parallel;
  const std::int64_t rows = as_matrix(x).rows;
  const std::int64_t first = tensor.splits_tokens() ? tensor.rank() * rows : 0;
  std::int64_t begin = 0;  // of a chunk, among the rows of all ranks that have these tokens
  for (const Range& chunk : chunks_) {
    const std::int64_t end = begin + batch_ * chunk.size();
    const Range here{std::max(begin, first), std::min(end, first + rows)};
    if (here.size() > 0) {
      context.ops.dropout({.dropout = {.probability = probability_,
                                       .key = key_,
                                       .first_sample = context.buffer(first_sample_, slot)},
                           .sequence = chunk.size(),
                           .first_row = here.begin - begin,
                           .first_position = chunk.begin},
                          x.rows(here.begin - first, here.end - first),
                          y.rows(here.begin - first, here.end - first), context.compute);
    }
    begin = end;
  }
}

}  // namespace dstrain
