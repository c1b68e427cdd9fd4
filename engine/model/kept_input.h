// KeptInput: what a block that computes again keeps of its input, the residual stream. Without
// sequence parallelism all t tensor-parallel ranks hold the same stream, so that each can keep one
// part of it, in the device's memory or in the host's (Rajbhandari et al. 2020, "ZeRO",
// section 6.1: partitioned activation checkpointing).
//
//   forward    stream = x + delta;  keep: copy my part, to the host;  the rest of the block
//   backward   restore: bring it back, all-gather the parts over t;  compute again;  gradients
//
// Memory: N · C / t numbers a block and micro-batch in flight instead of N · C, and one stream of
// N · C that all blocks use in turn; with the host, those N · C / t are its, and on the device are
// two more of N · C / t. On the wire: one all-gather of N · C a block and micro-batch; on the way
// to the host and back, N · C / t each. What comes back are the bits that were copied, so no result
// changes.
//
// Where several micro-batches go through a block before the next (LayerShape::together), the stream
// is scratch that they use in turn as well; what waits between two blocks lies in the stage's
// buffers.
#pragma once

#include <string>

#include "engine/model/layer_context.h"
#include "engine/model/layer_shape.h"
#include "engine/runtime/input_copies.h"

namespace dstrain {

class KeptInput {
 public:
  /// Whether ranks of this shape share a block's input, if that is `asked` for.
  static bool is_shared(const LayerShape& shape, bool asked);
  /// `name`: the block's. Without LayerShape::keeps_input_apart(), the stream keeps itself, and the
  /// rest does nothing.
  static KeptInput declare(const LayerShape& shape, const std::string& name, Blueprint& blueprint);

  void keep(const LayerContext& context, int slot, ConstTensor stream_NC) const;
  /// Makes the stream what it was when it was kept.
  void restore(const LayerContext& context, int slot, Tensor stream_NC) const;
  /// Starts to bring what restore() will ask for: call it for the next restore(), then for the one
  /// after it.
  void bring_soon(const LayerContext& context, int slot) const;

 private:
  [[nodiscard]] InputCopies::Kept of_micro_batch(const LayerContext& context, int slot) const;
  [[nodiscard]] InputCopies::Places places(const LayerContext& context) const;

  bool is_part_ = false;
  bool on_host_ = false;
  BufferRef kept_;       // [N C], or this rank's [N C / t]
  BufferRef places_[2];  // scratch, as large; with the host only
};

}  // namespace dstrain
