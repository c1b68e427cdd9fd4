// LowRank: what low-rank adapters add to a linear layer (LoRA, Hu et al. 2021, §4.1):
//
//   y  += s · (x · Aᵀ) · Bᵀ
//   dB  = s · dyᵀ · (x · Aᵀ)
//   dA  = s · (dy · B)ᵀ · x
//   dx += s · (dy · B) · A
//
// for each adapter of the stacked parts of its weight (q‖k‖v), some of which may have none. The
// product with A, r numbers a token, is computed again in backward. s is always taken into those r.
// The x of adapters may be another than the layer's: with elements dropped.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/model/layer_shape.h"
#include "engine/runtime/exec_context.h"

namespace dstrain {

class LowRank {
 public:
  /// Declares the adapters that `shape.tensors` has of the stacked parts `names`, whose outputs on
  /// this rank are `outputs`; nothing where it has none.
  static std::optional<LowRank> declare(const LayerShape& shape,
                                        const std::vector<std::string>& names,
                                        const std::vector<std::int64_t>& outputs,
                                        Blueprint& blueprint);

  /// Adds to y_NO.
  void forward(const ExecContext& context, ConstTensor x_NI, Tensor y_NO) const;
  /// Adds to squares_O (f32), which are those of the rows of the layer's weight_OI, what makes them
  /// those of W + s · B · A: 2 s B ∘ (W Aᵀ) + s² B ∘ (B A Aᵀ), summed over r. Where ranks have
  /// columns of W, what each adds is its part. Only with magnitudes.
  void add_squares(const ExecContext& context, ConstTensor weight_OI, Tensor squares_O) const;
  /// Adds to dx_NI, and computes the adapters' gradients.
  void backward(const ExecContext& context,
                ConstTensor dy_NO,
                ConstTensor x_NI,
                Tensor dx_NI,
                const GradTarget& gradients) const;

 private:
  /// One adapter: A, and the rows of B that belong to columns [first, first + width) of y.
  struct Part {
    ParamRef a;
    ParamRef b;
    int count = 0;  // neighbouring tensors that make up B
    std::int64_t first = 0;
    std::int64_t width = 0;
  };
  /// s · x · Aᵀ
  [[nodiscard]] Tensor narrow(const ExecContext& context, const Part& part, ConstTensor x_NI) const;
  [[nodiscard]] ConstTensor b_of(const ExecContext& context, const Part& part) const;

  std::vector<Part> parts_;
  std::int64_t rank_ = 0;
  float scale_ = 1.0F;
  BufferRef narrow_;    // scratch [N, r]
  BufferRef d_narrow_;  // scratch [N, r]
  // With magnitudes: scratch f32 [the widest part, r] twice, and [r, r].
  BufferRef products_;
  BufferRef of_gram_;
  BufferRef gram_;
};

}  // namespace dstrain
