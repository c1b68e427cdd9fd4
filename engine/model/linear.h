// Linear: y = x · weightᵀ + bias, whose weight may be several named parameters stacked by rows
// (q‖k‖v, gate‖up): neighbours in their unit, so one matrix product serves them all.
#pragma once

#include <span>
#include <string>

#include "engine/model/layer_shape.h"
#include "engine/runtime/exec_context.h"

namespace dstrain {

class Linear {
 public:
  struct Part {
    std::string name;          ///< "blocks.3.attention.query"; ".weight" and ".bias" are appended
    std::int64_t outputs = 0;  ///< rows of its weight
  };
  /// Deviation of initial weights; biases start at zero.
  static Linear declare(Blueprint& blueprint,
                        std::span<const Part> parts,
                        std::int64_t inputs,
                        bool bias,
                        float deviation);

  [[nodiscard]] std::int64_t outputs() const { return outputs_; }

  /// x [N, inputs] → y [N, outputs].
  void forward(const ExecContext& context, ConstTensor x, Tensor y) const;
  /// dx (overwritten) and the parameters' gradients from dy.
  void backward(const ExecContext& context,
                ConstTensor dy,
                ConstTensor x,
                Tensor dx,
                const GradTarget& gradients) const;

 private:
  ParamRef weight_;  // first of num_parts_ neighbours
  ParamRef bias_;    // likewise; index < 0 without biases
  int num_parts_ = 0;
  std::int64_t inputs_ = 0;
  std::int64_t outputs_ = 0;
};

}  // namespace dstrain
