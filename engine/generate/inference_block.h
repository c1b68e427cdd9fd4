// InferenceBlock: a transformer block that computes new positions of one sequence and remembers
// their keys and values, so that later positions need only their own. The same operations as a
// block in training (engine/model/block.h), but for attention; nothing is kept for a backward.
#pragma once

#include <string>

#include "engine/config/model_spec.h"
#include "engine/model/linear.h"
#include "engine/plan/shard_map.h"
#include "engine/runtime/exec_context.h"

namespace dstrain {

struct InferenceShape {
  ModelSpec model;
  DType compute = DType::kF32;
  std::int64_t positions = 1;     ///< P, rows of the cache
  std::int64_t chunk_tokens = 1;  ///< N, positions that one forward computes at most
};

/// LayerNorm or RMSNorm of a residual stream, with the addition before it.
class InferenceNorm {
 public:
  static InferenceNorm declare(const InferenceShape& shape,
                               const std::string& name,
                               Blueprint& blueprint);
  /// residual_NC += delta_NC (optional), and its norm, which is valid until the next one.
  [[nodiscard]] ConstTensor forward(const ExecContext& context,
                                    Tensor residual_NC,
                                    ConstTensor delta_NC) const;

 private:
  NormKind kind_ = NormKind::kRmsNorm;
  float epsilon_ = 0.0F;
  ParamRef weight_;
  ParamRef bias_;
  BufferRef output_;  // scratch [N, C]
  BufferRef stats_;   // scratch [N, 2]
};

class InferenceBlock {
 public:
  /// `layer`: which block of the model it is.
  static InferenceBlock declare(const InferenceShape& shape,
                                std::int64_t layer,
                                const std::string& name,
                                Blueprint& blueprint);

  /// residual_NC: the stream of `positions`, and delta_NC (optional) what the block before adds to
  /// it. Returns what this one adds, valid until the next block's forward has begun to add.
  [[nodiscard]] ConstTensor forward(const ExecContext& context,
                                    Range positions,
                                    Tensor residual_NC,
                                    ConstTensor delta_NC) const;
  /// Fills the tables of RoPE; of one block, for all.
  void prepare(const ExecContext& context) const;

 private:
  void attend(const ExecContext& context, Range positions, ConstTensor x_NC, Tensor y_NC) const;
  void feed_forward(const ExecContext& context, ConstTensor x_NC, Tensor y_NC) const;

  ModelSpec model_;
  std::int64_t window_ = 0;  // positions that one attends to; 0: all
  InferenceNorm attention_norm_;
  Linear qkv_;
  Linear attention_output_;
  InferenceNorm mlp_norm_;
  Linear up_;
  Linear down_;
  BufferRef cache_;                                   // [P, 2K·D]
  BufferRef qkv_out_, heads_, pre_, hidden_, delta_;  // scratch, shared by all blocks
  BufferRef cosine_, sine_;                           // constant
};

}  // namespace dstrain
