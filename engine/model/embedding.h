// Embedding: token rows, scaled or normalised where the model does, and learned position rows where
// it has them.
#pragma once

#include <optional>
#include <vector>

#include "engine/model/dropout.h"
#include "engine/model/layer_context.h"
#include "engine/model/layer_shape.h"
#include "engine/model/norm.h"

namespace dstrain {

class Embedding {
 public:
  /// `tied_across_stages`: the head is on another pipeline stage and has a copy of the table, which
  /// is then alone in its unit, so that both stages cut it alike. The norm is in a unit of its own,
  /// as backward reads it and not the table.
  static Embedding declare(const LayerShape& shape, bool tied_across_stages, Blueprint& blueprint);
  /// The declaration of that copy.
  static ParamDecl table_copy(const LayerShape& shape);

  /// This rank's rows of a [vocabulary, C] matrix: equal slices, the last ones padded.
  static VocabSlice vocabulary_slice(const LayerShape& shape);

  /// The token table, which a tied head computes logits with.
  [[nodiscard]] ParamRef table() const { return table_; }
  /// The table's first; that of the positions, where it is another; that of the norm.
  [[nodiscard]] std::vector<int> units() const;
  /// Of these, those that backward reads.
  [[nodiscard]] std::vector<int> units_of_backward() const;

  /// tokens_N i32 → the residual stream's first values, [N, C] or this rank's tokens of it.
  void forward(const LayerContext& context, int slot, ConstTensor tokens_N, Tensor stream) const;
  /// What gradients are written to; of what the model has not, nothing.
  struct Gradients {
    Write table_write;  ///< kAdd where a tied head has written its part already
    GradTarget table;
    GradTarget positions;
    GradTarget norm;
    /// Makes further gradients be added to what has been written.
    void add_from_here() { table_write = table.write = positions.write = norm.write = Write::kAdd; }
  };
  /// d_stream: the gradient of the stream's first values, which may be overwritten.
  void backward(const LayerContext& context,
                int slot,
                ConstTensor tokens_N,
                Tensor d_stream,
                const Gradients& gradients) const;
  /// Of `units()`, by a function from a unit to where its gradients go.
  template <typename Target>
  [[nodiscard]] Gradients gradients(Target&& of_unit) const {
    Gradients to{};
    to.table = of_unit(table_.unit);
    to.table_write = to.table.write;
    if (position_.index >= 0) {
      to.positions = position_.unit == table_.unit ? to.table : of_unit(position_.unit);
    }
    if (norm_) {
      to.norm = of_unit(norm_->unit());
    }
    return to;
  }

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
  std::optional<Norm> norm_;
  EmbeddingNoise noise_;
  StreamDropout dropout_;
  std::int64_t first_position_ = 0;  // row of position_
  BufferRef token_positions_;
  BufferRef gathered_;  // scratch [N, C]; sequence parallelism only
};

}  // namespace dstrain
