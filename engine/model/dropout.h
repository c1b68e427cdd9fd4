// What training draws at random: dropout of the residual stream and of what adapters read, and
// noise of embeddings.
//
// The numbers depend on the run's seed, the place in the model and the element's sample, position
// and column (kernels/math/dropout.h). So all layouts draw the same ones, and backward and
// recomputation draw them again.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/model/layer_context.h"
#include "engine/model/layer_shape.h"
#include "kernels/dropout.h"

namespace dstrain {

/// Places in the model with random numbers of their own.
enum class DropoutSite : std::uint8_t { kEmbedding, kAttention, kAttentionBranch, kMlpBranch };

/// The key of a place; `block` is 0 for the embedding's.
std::uint64_t dropout_key(std::uint64_t seed, std::int64_t block, DropoutSite site);

/// The rows of a micro-batch's tokens, as what is drawn for them counts them.
class DrawnTokens {
 public:
  DrawnTokens() = default;
  DrawnTokens(const LayerShape& shape, std::uint64_t key);

  /// Calls body(rows, place) for some neighbours among this rank's tokens, chunk by chunk of the
  /// sequences: `rows` are among those given, `place` says what is drawn for them.
  template <typename Body>
  void for_each_chunk(const LayerContext& context,
                      int slot,
                      const Range& tokens,
                      const Body& body) const {
    std::int64_t begin = 0;  // of a chunk, among the rows of all ranks that have these tokens
    for (const Range& chunk : chunks_) {
      const std::int64_t end = begin + batch_ * chunk.size();
      const Range here{std::max(begin, tokens.begin), std::min(end, tokens.end)};
      if (here.size() > 0) {
        body(Range{here.begin - tokens.begin, here.end - tokens.begin},
             DropoutRows{
                 .dropout = {.key = key_, .first_sample = context.buffer(first_sample_, slot)},
                 .sequence = chunk.size(),
                 .first_row = here.begin - begin,
                 .first_position = chunk.begin});
      }
      begin = end;
    }
  }

 private:
  std::uint64_t key_ = 0;
  std::int64_t batch_ = 1;
  std::vector<Range> chunks_;  // of each sequence, that this rank has
  BufferRef first_sample_;
};

/// Dropout after the embedding, or of what half a block adds.
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
  DrawnTokens tokens_;
};

/// Noise that is added to embeddings, uniform within ±α/√(T·C) (NEFTune, Jain et al. 2023).
class EmbeddingNoise {
 public:
  EmbeddingNoise() = default;
  explicit EmbeddingNoise(const LayerShape& shape);

  /// Adds to x, the embeddings of this rank's tokens; nothing without noise.
  void add(const LayerContext& context, int slot, Tensor x) const;

 private:
  float magnitude_ = 0.0F;
  DrawnTokens tokens_;
};

/// Dropout of what the adapters of one layer read, all of its tokens in whole or in some columns.
class InputDropout {
 public:
  InputDropout() = default;
  /// `layer` names it in its block; `first_column` is that of this rank.
  InputDropout(const LayerShape& shape, std::string_view layer, std::int64_t first_column);

  [[nodiscard]] bool drops() const { return probability_ > 0.0F; }
  /// y = x with elements dropped. y may be x. Called only where drops().
  void apply(const LayerContext& context, int slot, ConstTensor x, Tensor y) const;

 private:
  float probability_ = 0.0F;
  std::int64_t first_token_ = 0;
  std::int64_t first_column_ = 0;
  DrawnTokens tokens_;
};

}  // namespace dstrain
