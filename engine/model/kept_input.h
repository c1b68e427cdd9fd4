// KeptInput: what a block that computes again keeps of its input, the residual stream. Without
// sequence parallelism all t tensor-parallel ranks hold the same stream, so that each can keep one
// part of it (Rajbhandari et al. 2020, "ZeRO", section 6.1: partitioned activation checkpointing).
//
//   forward    stream = x + delta;  keep: copy my part;  the rest of the block
//   backward   restore: all-gather the parts over t;  compute again;  gradients
//
// Memory: N · C / t numbers a block and micro-batch in flight instead of N · C, and one stream of
// N · C that all blocks use in turn. On the wire: one all-gather of N · C a block and micro-batch.
// Gathered are the bits that were copied, so no result changes.
#pragma once

#include <string>

#include "engine/model/layer_context.h"
#include "engine/model/layer_shape.h"

namespace dstrain {

class KeptInput {
 public:
  /// Whether ranks of this shape share a block's input, if that is `asked` for.
  static bool is_shared(const LayerShape& shape, bool asked);
  /// `name`: the block's. Without LayerShape::partitions_input, the stream keeps itself, and the
  /// rest does nothing.
  static KeptInput declare(const LayerShape& shape, const std::string& name, Blueprint& blueprint);

  void keep(const LayerContext& context, int slot, ConstTensor stream_NC) const;
  /// Makes the stream what it was when it was kept.
  void restore(const LayerContext& context, int slot, Tensor stream_NC) const;

 private:
  BufferRef part_;  // [N C / t]
};

}  // namespace dstrain
