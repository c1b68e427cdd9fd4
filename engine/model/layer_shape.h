// LayerShape: the sizes that every layer of a stage is declared with, what its backward may compute
// again instead of keeping it, and whether there is a backward at all.
//
// The layers of this folder share one form: a static declare() adds what the layer stores to a
// Blueprint and returns the layer, which is a handful of references into it; forward() and
// backward() find their tensors through the LayerContext. `slot` is the micro-batch in flight.
//
// A layer runs in one of two modes, and LayerShape::cache_positions says which:
//
//   train         a forward computes a micro-batch and keeps activations for its backward
//   extend        a forward computes the next tokens of texts (LayerContext::extension),
//                 appends their keys and values to a cache and attends to all that it holds.
//                 Nothing is kept otherwise, and there is no backward.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/config/arch/adapters.h"
#include "engine/config/arch/architecture.h"
#include "engine/config/arch/tensor_list.h"
#include "engine/config/dropout_config.h"
#include "engine/config/recompute_config.h"
#include "engine/config/tensor_patterns.h"
#include "engine/config/tensor_rates.h"
#include "engine/plan/blueprint.h"
#include "engine/plan/token_share.h"
#include "kernels/core/dtype.h"

namespace dstrain {

/// This rank's place in its tensor-parallel group.
struct TensorShape {
  int ranks = 1;  ///< t
  int rank = 0;
  bool sequence_parallel = false;
  /// The ranks of the group that each have all of a layer, for the tokens of their own streams. The
  /// three above are then those of one rank.
  int streams = 1;
  int stream = 0;

  /// The part of a tensor that this rank holds.
  [[nodiscard]] TensorShare share_of(const TensorDecl& tensor) const;
  /// The number of neighbouring ranks that hold the same head: more than one where there are fewer
  /// heads than ranks.
  [[nodiscard]] int copies_of_heads(std::int64_t heads) const;
};

/// This rank's place among those that hold other experts of the same layers.
struct ExpertShape {
  int ranks = 1;
  int rank = 0;
  double capacity_factor = 0.0;  ///< expert_capacity.h; 0: experts take all tokens
  bool overlap = false;          ///< rows travel to other ranks and back while others compute
  /// With sequence parallelism: each tensor-parallel rank routes the tokens of its own stream, to
  /// experts that are not cut. Otherwise these ranks have parts of each expert, and all tokens.
  bool own_tokens = false;

  /// Whether experts lie on other groups of ranks than the rest of their block.
  [[nodiscard]] bool apart() const { return ranks > 1 || own_tokens; }
};

/// The low-rank adapters of every block, and what is trained beside them.
struct AdapterShape {
  std::vector<AdaptedModule> modules{};  ///< empty: there are none
  std::int64_t rank = 0;                 ///< r
  float scale = 1.0F;                    ///< s
  bool magnitudes = false;               ///< rows have some of their own (DoRA)
  float dropout = 0.0F;                  ///< of what A reads; what extends a cache drops nothing
  TensorPatterns whole{};                ///< tensors that are trained themselves
};

/// How forward computes a tensor that backward reads, which decides whether it is kept until then
/// or computed again. "full" is activation checkpointing, block by block (Chen et al. 2016,
/// "Training deep nets with sublinear memory cost", §4); "selective" spares the products (after
/// Korthikanti et al. 2022, "Reducing activation recomputation in large transformer models", §5,
/// whose own choice, the scores of attention, no granularity keeps here).
///
///                none    selective   full
///   kInput       kept    kept        kept
///   kProduct     kept    kept        again
///   kHandedOn    kept    kept        again
///   kRowwise     kept    again       again
///
/// Where tensor-parallel ranks share it, or the host's memory holds it, kInput is neither
/// (kept_input.h).
enum class Origin : std::uint8_t {
  kInput,     ///< the residual stream that enters a block: where computing again begins
  kProduct,   ///< matrix products or attention
  kHandedOn,  ///< the same, and the next block's forward reads it as well
  kRowwise    ///< one elementwise or row-wise pass over tensors of the other two
};

struct LayerShape {
  Architecture model;
  std::int64_t batch = 1;     ///< B, sequences of a micro-batch
  std::int64_t sequence = 1;  ///< T, of a whole sequence, whichever ranks share it
  /// For layers that compute in the buffers of longer sequences, the T of those. 0: they have
  /// buffers of their own.
  std::int64_t buffers_sequence = 0;
  /// The most tokens whose logits, or whose feed-forward, are computed at a time; 0: as many logits
  /// as LossHead chooses, and the feed-forward of all. What extends a cache has no tiles.
  std::int64_t loss_tile_tokens = 0;
  std::int64_t mlp_tile_tokens = 0;
  DType compute = DType::kF32;
  TensorShape tensor{};
  ContextShape context{};
  ExpertShape experts{};
  bool fp8 = false;        ///< the blocks' products are in 8 bits
  bool documents = false;  ///< a sequence holds several, none of which sees another
  /// P, the rows that a text has in the cache that the layers extend. `batch` is then 1, and
  /// `sequence` the most tokens that one forward computes. 0: the layers train.
  std::int64_t cache_positions = 0;
  std::int64_t cache_texts = 1;        ///< those that have a place in the cache
  DropoutConfig dropout{};             ///< of training; what extends a cache drops nothing
  float noise_alpha = 0.0F;            ///< of embeddings in training (NEFTune); 0: none
  std::uint64_t seed = 0;              ///< of dropout and noise
  TensorPatterns frozen{};             ///< those that are not trained
  AdapterShape adapters{};             ///< with these, everything else is frozen
  std::vector<AdaptedModule> coded{};  ///< that lie in few bits a number (ParamDecl::code)
  bool codes_in_8_bits = false;        ///< of these; else 4
  TensorRates rates{};
  bool weighs_targets = false;  ///< target_weigher.h
  /// Many targets may not count, so that only some tokens go through the loss head.
  bool skips_targets = false;
  /// Several micro-batches go through each unit before the next unit, so that what a unit hands on
  /// is kept for each of them.
  bool together = false;
  // Buffers of the stage being declared: with `documents`, or where ranks share sequences, i32 [N],
  // the position of each token in its document; of the tokens that this rank attends for, which are
  // others where heads are exchanged; with dropout, i32 [2], the number of the micro-batch's first
  // sample (kernels/dropout.h); with `together`, the stream [n, C] and what the next block adds to
  // it [N, C], as a block hands them on, the stream only where blocks do not keep it.
  BufferRef token_positions{};
  BufferRef query_positions{};
  BufferRef first_sample{};
  BufferRef handed_on_stream{};
  BufferRef handed_on{};
  // The following are of the block being declared.
  std::int64_t block = 0;  ///< its index in the model
  LayerSpec layer{};
  RecomputeGranularity recompute = RecomputeGranularity::kNone;
  // The stream that enters the block is scratch where one of these is set, and KeptInput keeps a
  // part of it, or keeps it in the host's memory, or both.
  bool partitions_input = false;
  bool input_on_host = false;
  std::vector<TensorDecl> tensors{};  ///< of it, or of the embedding or head

  [[nodiscard]] bool keeps_input_apart() const { return partitions_input || input_on_host; }
  [[nodiscard]] bool extends_cache() const { return cache_positions > 0; }
  /// Whether training draws numbers at random.
  [[nodiscard]] bool draws() const {
    return !extends_cache() && (dropout.any() || adapters.dropout > 0.0F || noise_alpha > 0.0F);
  }
  /// The number of positions that a token can have.
  [[nodiscard]] std::int64_t positions() const {
    return extends_cache() ? cache_positions : sequence;
  }
  /// The number of tokens of a sequence that this rank has.
  [[nodiscard]] std::int64_t own_sequence() const { return sequence / context.ranks(); }
  /// N = B · T, or this rank's share of it.
  [[nodiscard]] std::int64_t tokens() const { return batch * own_sequence() / tensor.streams; }
  /// The tokens() that the buffers are for.
  [[nodiscard]] std::int64_t planned_tokens() const {
    return batch * std::max(sequence, buffers_sequence) / context.ranks() / tensor.streams;
  }
  /// The tokens of one of the even tiles, of at most `most`, that these are cut into, or tokens()
  /// where those are fewer.
  [[nodiscard]] std::int64_t tile_tokens(std::int64_t most) const;
  /// Whether feed-forwards compute their tokens in tiles, and how many of them at a time.
  [[nodiscard]] bool has_mlp_tiles() const {
    return mlp_tile_tokens > 0 && mlp_tile_tokens < planned_tokens() && !extends_cache();
  }
  [[nodiscard]] std::int64_t mlp_tile() const {
    return has_mlp_tiles() ? tile_tokens(mlp_tile_tokens) : tokens();
  }
  /// This shape for a layer of which each tensor-parallel rank has all, for the tokens of its own
  /// stream.
  [[nodiscard]] LayerShape of_own_tokens() const;
  /// The number of tokens that this rank attends for.
  [[nodiscard]] std::int64_t query_tokens() const { return tokens() * context.heads; }
  /// Whether layers are told the position of each token.
  [[nodiscard]] bool has_token_positions() const { return documents || context.ranks() > 1; }
  /// The number of tokens of norms and of the residual stream on this rank: N, or N / t with
  /// sequence parallelism.
  [[nodiscard]] std::int64_t stream_tokens() const {
    return tensor.sequence_parallel ? tokens() / tensor.ranks : tokens();
  }
  /// The number of tokens of a micro-batch whose products are in 8 bits.
  [[nodiscard]] std::optional<std::int64_t> fp8_tokens() const {
    return fp8 ? std::optional(tokens()) : std::nullopt;
  }
  /// The tensor of that name among `tensors`, which must have it.
  [[nodiscard]] const TensorDecl& tensor_named(const std::string& name) const;
  [[nodiscard]] bool trains(const TensorDecl& of) const {
    return of.adapter ||
           (adapters.modules.empty() ? !frozen.covers(of.name) : adapters.whole.covers(of.name));
  }
  /// The matrices that are coded together with one, in order; nothing where it is not coded.
  [[nodiscard]] std::vector<std::string> coded_together(const std::string& weight) const;
  /// The declaration of a tensor as this rank holds it.
  [[nodiscard]] ParamDecl param(const TensorDecl& of) const;
  /// Declares a tensor that forward writes and backward reads: "blocks.3.mlp/hidden" where it is
  /// kept; otherwise "mlp/hidden", which all blocks that compute it again, or have no backward,
  /// share.
  BufferRef add_activation(Blueprint& blueprint,
                           const std::string& layer,
                           const std::string& what,
                           Shape shape,
                           DType dtype,
                           Origin origin,
                           LayerKind kind) const;
  /// Declares what a block hands to the next, which reads it before it hands on its own:
  /// `scratch`, or, with `together`, the stage's buffer.
  BufferRef add_handed_on(Blueprint& blueprint, BufferDecl scratch) const;
  /// Declares a buffer that backward alone touches. Layers without a backward have none.
  BufferRef add_backward_buffer(Blueprint& blueprint, BufferDecl buffer) const;
};

}  // namespace dstrain
