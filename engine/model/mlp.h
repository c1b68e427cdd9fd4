// Mlp: the feed-forward half of a block.
//
//   plain (GPT-2):  y = down(act(up x))
//   gated (LLaMA):  y = down(act(gate x) · up x), gate and up in one product
#pragma once

#include <string>

#include "engine/model/layer_context.h"
#include "engine/model/layer_shape.h"
#include "engine/model/linear.h"

namespace dstrain {

class Mlp {
 public:
  static Mlp declare(const LayerShape& shape, const std::string& name, Blueprint& blueprint);

  /// Calls expand(), then computes y = down(hidden).
  void forward(const LayerContext& context, int slot, ConstTensor x_NC, Tensor y_NC) const;
  /// Computes all of forward that backward reads: pre = up x, and activate().
  void expand(const LayerContext& context, int slot, ConstTensor x_NC) const;
  /// Computes hidden = act(pre), or act(gate) · up, or what a limit makes of them, from pre as it
  /// was kept: where expand() computed both in one, hidden may differ from that by pre's rounding.
  void activate(const LayerContext& context, int slot) const;
  void backward(const LayerContext& context,
                int slot,
                ConstTensor dy_NC,
                ConstTensor x_NC,
                Tensor dx_NC,
                const GradTarget& gradients) const;

 private:
  ActivationKind activation_{};
  float limit_ = 0.0F;  // of gates
  bool gated_ = true;
  Linear up_;  // gate‖up where gated
  Linear down_;
  BufferRef pre_;       // for backward: [N, F] or [N, 2F]
  BufferRef hidden_;    // for backward: [N, F]
  BufferRef d_hidden_;  // scratch, where gated: plain goes back to pre in one operation
  BufferRef d_pre_;     // scratch
};

}  // namespace dstrain
