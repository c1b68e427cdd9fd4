// Embedding: token rows, scaled where the model does, and learned position rows where it has them.
#pragma once

#include "engine/model/dropout.h"
#include "engine/model/layer_context.h"
#include "engine/model/layer_shape.h"

namespace dstrain {

class Embedding {
 public:
  /// `tied_across_stages`: the head is on another pipeline stage and has a copy of the table, which
  /// is then alone in its unit, so that both stages cut it alike.
  static Embedding declare(const LayerShape& shape, bool tied_across_stages, Blueprint& blueprint);
  /// The declaration of that copy.
  static ParamDecl table_copy(const LayerShape& shape);

  /// This rank's rows of a [vocabulary, C] matrix: equal slices, the last ones padded.
  static VocabSlice vocabulary_slice(const LayerShape& shape);

  /// The token table, which a tied head computes logits with.
  [[nodiscard]] ParamRef table() const { return table_; }
  /// The unit of the learned positions; -1 without them.
  [[nodiscard]] int position_unit() const { return position_.unit; }

  /// tokens_N i32 → the residual stream's first values, [N, C] or this rank's tokens of it.
  void forward(const LayerContext& context, int slot, ConstTensor tokens_N, Tensor stream) const;
  /// d_stream is their gradient, which may be overwritten. `table_write` is kAdd where a tied head
  /// has written its part already.
  void backward(const LayerContext& context,
                int slot,
                ConstTensor tokens_N,
                Tensor d_stream,
                Write table_write,
                const GradTarget& table,
                const GradTarget& positions) const;

 private:
  void scale(const LayerContext& context, Tensor stream) const;
  /// The rows that the positions have, from a table with all rows.
  template <typename View>
  [[nodiscard]] View from_first(View positions) const {
    return positions.rows(first_position_, positions.dim(0));
  }

  std::int64_t sequence_ = 0;
  float scale_ = 1.0F;  // as the compute dtype rounds it
  VocabSlice slice_;    // of the vocabulary: this rank's rows of the table
  ParamRef table_;
  ParamRef position_;
  StreamDropout dropout_;
  std::int64_t first_position_ = 0;  // row of position_
  BufferRef document_positions_;
  BufferRef gathered_;  // scratch [N, C]; sequence parallelism only
};

}  // namespace dstrain
