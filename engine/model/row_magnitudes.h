// RowMagnitudes: weights whose rows have magnitudes m of their own beside low-rank adapters (DoRA,
// "DoRA: Weight-Decomposed Low-Rank Adaptation", Liu et al. 2024, §4):
//
//   V  = W + s · B · A,  d = x · Vᵀ        the directions, of which the rows' lengths are ‖V‖
//   y  = d · m / ‖V‖ + bias                column by column
//   dm = Σ dy · d / ‖V‖,  dd = dy · m / ‖V‖
//
// Lengths count as constant in backward (§4.3). d is kept where products are; otherwise it is made
// again before backward.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/model/layer_context.h"
#include "engine/model/layer_shape.h"

namespace dstrain {

class RowMagnitudes {
 public:
  /// Declares those that `shape.tensors` has of the stacked parts `names`, whose outputs on this
  /// rank are `outputs`; nothing where it has none. `sums`: ranks have columns of the weight.
  static std::optional<RowMagnitudes> declare(const LayerShape& shape,
                                              const std::vector<std::string>& names,
                                              const std::vector<std::int64_t>& outputs,
                                              bool sums,
                                              Blueprint& blueprint);

  /// d_NO of `tokens` tokens, and f32 squares_O, the squared lengths of V's rows.
  [[nodiscard]] Tensor directions(const LayerContext& context, int slot, std::int64_t tokens) const;
  [[nodiscard]] Tensor squares(const LayerContext& context, int slot) const;
  /// The squares that each rank made of its columns become those of whole rows.
  void sum_over_ranks(const LayerContext& context, Tensor squares_O) const;

  /// y_NO = or += d · m / ‖V‖ + bias_O (optional). Parts without magnitudes: d + bias.
  void forward(
      const LayerContext& context, int slot, ConstTensor bias_O, Tensor y_NO, Write write) const;
  /// Computes the magnitudes' gradients, and returns dd_NO.
  [[nodiscard]] Tensor backward(const LayerContext& context,
                                int slot,
                                ConstTensor dy_NO,
                                const GradTarget& gradients) const;

 private:
  struct Part {
    ParamRef magnitudes;  // index < 0: it has none
    std::int64_t first = 0;
    std::int64_t width = 0;
  };
  std::vector<Part> parts_;
  std::int64_t outputs_ = 0;
  bool sums_ = false;
  BufferRef directions_;
  BufferRef squares_;
  BufferRef d_directions_;  // scratch [N, O]
};

}  // namespace dstrain
