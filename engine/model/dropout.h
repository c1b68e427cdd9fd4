// Dropout of the residual stream, in place: after the embedding, or of what half a block adds.
//
// Which elements are dropped depends on the run's seed, the place in the model and the element's
// sample, position and column (kernels/math/dropout.h). So all layouts drop the same ones, and
// backward and recomputation draw them again.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/model/layer_context.h"
#include "engine/model/layer_shape.h"
#include "kernels/dropout.h"

namespace dstrain {

/// Places in the model with random numbers of their own.
enum class DropoutSite : std::uint8_t { kEmbedding, kAttention, kAttentionBranch, kMlpBranch };

/// The key of a place; `block` is 0 for the embedding's.
std::uint64_t dropout_key(std::uint64_t seed, std::int64_t block, DropoutSite site);

class StreamDropout {
 public:
  StreamDropout() = default;
  /// Declares dropout at a place of the block being declared, or of the embedding.
  StreamDropout(const LayerShape& shape, DropoutSite site, float probability);

  [[nodiscard]] bool drops() const { return probability_ > 0.0F; }
  /// y = x with elements dropped, for this rank's tokens. y may be x. Called only where drops().
  void apply(const LayerContext& context, int slot, ConstTensor x, Tensor y) const;

 private:
  float probability_ = 0.0F;
  std::uint64_t key_ = 0;
  std::int64_t batch_ = 1;
  std::vector<Range> chunks_;  // of each sequence, that this rank has
  BufferRef first_sample_;
};

}  // namespace dstrain
