// Norm: LayerNorm or RMSNorm together with the residual addition before it. Its backward needs the
// residual stream after the addition, from which the rest can be computed again.
//
//   residual = x + delta          delta: output of the layer before, or none
//   y        = norm(residual)
#pragma once

#include <string>

#include "engine/model/layer_context.h"
#include "engine/model/layer_shape.h"

namespace dstrain {

class Norm {
 public:
  /// Whether backward reads what the norm makes.
  enum class Output : std::uint8_t {
    kKept,
    kPassedOn,  ///< it does not, and nothing does after the call
    kHandedOn,  ///< it does not, but the next block's forward does
    kElsewhere  ///< forward_into() says where it goes
  };
  /// `name`: of the parameters ("blocks.3.attention_norm") and of the buffers; `residual`: how
  /// x + delta comes about.
  static Norm declare(const LayerShape& shape,
                      const NormSpec& spec,
                      const std::string& name,
                      Origin residual,
                      Output output,
                      Blueprint& blueprint);

  /// Declares another norm of what `other` keeps, with weights of its own; its output is kept.
  static Norm declare_beside(const Norm& other,
                             const LayerShape& shape,
                             const NormSpec& spec,
                             const std::string& name,
                             Blueprint& blueprint);

  /// x, delta [N, C]. Without a delta x must be residual() itself, already filled; if a forward
  /// with a delta filled it, this one gives the same bits.
  void forward(const LayerContext& context, int slot, ConstTensor x, ConstTensor delta) const;
  void forward_into(
      const LayerContext& context, int slot, ConstTensor x, ConstTensor delta, Tensor y) const;
  [[nodiscard]] Tensor residual(const LayerContext& context, int slot) const;
  [[nodiscard]] Tensor output(const LayerContext& context, int slot) const;
  /// Of its parameters.
  [[nodiscard]] int unit() const { return weight_.unit; }
  /// dx: gradient of the residual stream; kAdd where it already holds the part that by-passes
  /// the norm.
  void backward(const LayerContext& context,
                int slot,
                ConstTensor dy,
                Tensor dx,
                Write dx_write,
                const GradTarget& gradients) const;

 private:
  void declare_own(const LayerShape& shape,
                   const NormSpec& spec,
                   const std::string& name,
                   Output output,
                   Blueprint& blueprint);

  NormSpec spec_;
  ParamRef weight_;
  ParamRef bias_;
  BufferRef residual_;
  BufferRef output_;
  BufferRef stats_;
};

}  // namespace dstrain
