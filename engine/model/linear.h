// Linear: y = x · weightᵀ + bias, whose weight may be several named parameters stacked by rows
// (q‖k‖v, gate‖up): neighbours in their unit, so one matrix product serves them all. Beside it
// there may be low-rank adapters (low_rank.h), whose input may lose elements (dropout.h), and
// magnitudes of its rows (row_magnitudes.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/model/dropout.h"
#include "engine/model/fp8_linear.h"
#include "engine/model/layer_shape.h"
#include "engine/model/low_rank.h"
#include "engine/model/row_magnitudes.h"

namespace dstrain {

class Linear {
 public:
  /// `names` are those of the stacked parameters ("blocks.3.attention.query"); ".weight" and
  /// ".bias" are appended. Their declarations say how the model's ranks share them: with Cut::kRows
  /// each rank has rows of the weight and makes some of the outputs; with Cut::kColumns each reads
  /// some of the inputs and makes a part of the sum, to which the first rank adds the bias.
  static Linear declare(const LayerShape& shape,
                        const std::vector<std::string>& names,
                        Blueprint& blueprint);

  /// The number of outputs on this rank.
  [[nodiscard]] std::int64_t outputs() const { return outputs_; }

  /// x [N, inputs] → y [N, outputs], as many as this rank has of them.
  void forward(const LayerContext& context, int slot, ConstTensor x, Tensor y) const;
  /// Computes the same as pre, and y = act(pre). Only where weights are cut by rows, so that no sum
  /// over ranks comes between.
  void forward_activated(const LayerContext& context,
                         int slot,
                         ActivationKind activation,
                         ConstTensor x,
                         Tensor pre,
                         Tensor y) const;
  /// Computes again what backward reads of a forward that is not computed again.
  void renew(const LayerContext& context, int slot, ConstTensor x) const;
  /// Computes dx (overwritten) and the parameters' gradients from dy.
  void backward(const LayerContext& context,
                int slot,
                ConstTensor dy,
                ConstTensor x,
                Tensor dx,
                const GradTarget& gradients) const;

  /// The same where x = act(pre): computes the gradient of pre (overwritten) in place of x's. Only
  /// where weights are cut by columns, and dx is a rank's own.
  void backward_activated(const LayerContext& context,
                          int slot,
                          ActivationKind activation,
                          ConstTensor dy,
                          ConstTensor x,
                          ConstTensor pre,
                          Tensor d_pre,
                          const GradTarget& gradients) const;

 private:
  /// y = x · weightᵀ + bias.
  void multiply(const ExecContext& context,
                ConstTensor x,
                ConstTensor weight,
                ConstTensor bias,
                Tensor y) const;
  /// dx = dy · weight, and the weight's gradient.
  void backward_multiply(const ExecContext& context,
                         ConstTensor dy,
                         ConstTensor x,
                         ConstTensor weight,
                         Tensor dx,
                         const GradTarget& gradients) const;
  /// x as adapters read it.
  [[nodiscard]] ConstTensor read_by_adapters(const LayerContext& context,
                                             int slot,
                                             ConstTensor x) const;
  /// The directions' product, of which rows have magnitudes.
  Tensor make_directions(const LayerContext& context,
                         int slot,
                         ConstTensor read,
                         ConstTensor weight) const;
  void backward_weight(const ExecContext& context,
                       ConstTensor dy,
                       ConstTensor x,
                       const GradTarget& gradients) const;
  void backward_bias(const ExecContext& context, ConstTensor dy, const GradTarget& gradients) const;
  /// Empty where the weight is not trained.
  [[nodiscard]] Tensor d_weight(const GradTarget& gradients) const;
  /// The weight; where it is coded, as decoded into scratch until the next is.
  [[nodiscard]] ConstTensor weight(const ExecContext& context) const;
  /// The bias; empty where there is none, or another rank adds it.
  [[nodiscard]] ConstTensor bias(const ExecContext& context) const;

  std::optional<Fp8Linear> fp8_;
  std::optional<LowRank> low_rank_;
  std::optional<RowMagnitudes> magnitudes_;
  InputDropout dropout_;
  BufferRef dropped_;    // scratch [N, inputs]: what adapters read
  BufferRef d_dropped_;  // scratch [N, inputs]
  ParamRef weight_;      // first of num_parts_ neighbours
  ParamRef bias_;        // likewise; index < 0 without biases
  BufferRef decoded_;    // scratch [outputs, inputs]; index < 0 where nothing is coded
  int num_parts_ = 0;
  bool sums_ = false;  // over the ranks: the weight is cut by columns
  bool adds_bias_ = true;
  std::int64_t inputs_ = 0;
  std::int64_t outputs_ = 0;
};

}  // namespace dstrain
