// Embedding: token rows, and learned position rows where the model has them.
#pragma once

#include "engine/model/layer_shape.h"
#include "engine/runtime/exec_context.h"

namespace dstrain {

class Embedding {
 public:
  static Embedding declare(const LayerShape& shape, Blueprint& blueprint);

  /// The token table, which a tied head computes logits with.
  [[nodiscard]] ParamRef table() const { return table_; }

  /// tokens_N i32 → x_NC.
  void forward(const ExecContext& context, ConstTensor tokens_N, Tensor x_NC) const;
  /// `table_write`: kAdd where a tied head has written its part already.
  void backward(const ExecContext& context,
                ConstTensor tokens_N,
                ConstTensor dx_NC,
                Write table_write,
                const GradTarget& gradients) const;

 private:
  std::int64_t sequence_ = 0;
  VocabSlice vocabulary_;  // of the table's rows
  ParamRef table_;
  ParamRef position_;
};

}  // namespace dstrain
