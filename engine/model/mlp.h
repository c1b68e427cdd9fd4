// Mlp: the feed-forward half of a block.
//
//   plain (GPT-2):  y = down(act(up x))
//   gated (LLaMA):  y = down(act(gate x) · up x), gate and up in one product
//
// In tiles over tokens (LayerShape::mlp_tile_tokens) nothing but x is kept, and pre and hidden are
// those of one tile: backward computes them again, tile by tile, and adds up the weights'
// gradients. (Bekman et al. 2025, "Arctic long sequence training", §3.1, whose feed-forward is of
// one whole shard at a time.)
#pragma once

#include <algorithm>
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
  /// Computes all of forward that backward reads: pre = up x, and activate(). In tiles it
  /// computes nothing.
  void expand(const LayerContext& context, int slot, ConstTensor x_NC) const;
  /// Computes hidden = act(pre), or act(gate) · up, or what a limit makes of them, from pre as it
  /// was kept: where expand() computed both in one, hidden may differ from that by pre's rounding.
  /// In tiles it computes nothing.
  void activate(const LayerContext& context, int slot) const;
  void backward(const LayerContext& context,
                int slot,
                ConstTensor dy_NC,
                ConstTensor x_NC,
                Tensor dx_NC,
                const GradTarget& gradients) const;

 private:
  /// Calls compute(tokens of the tile) for each.
  template <typename Compute>
  void for_each_tile(std::int64_t tokens, Compute&& compute) const {
    for (std::int64_t begin = 0; begin < tokens; begin += tile_) {
      compute(Range{begin, std::min(begin + tile_, tokens)});
    }
  }
  void expand_tile(const LayerContext& context, int slot, ConstTensor x_NC) const;
  void activate_tile(const LayerContext& context, int slot, std::int64_t tokens) const;

  std::int64_t tile_ = 0;  // tokens
  bool in_tiles_ = false;  // else one tile has all of them
  ActivationKind activation_{};
  float limit_ = 0.0F;  // of gates
  bool gated_ = true;
  Linear up_;  // gate‖up where gated
  Linear down_;
  BufferRef pre_;       // for backward: [tile, F] or [tile, 2F]
  BufferRef hidden_;    // for backward: [tile, F]
  BufferRef d_hidden_;  // scratch, where gated: plain goes back to pre in one operation
  BufferRef d_pre_;     // scratch
};

}  // namespace dstrain
