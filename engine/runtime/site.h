// Site: runs work on the tensors of one space: its operations, the memory's device and the stream
// that keeps the order. A bundle of references; owns nothing.
#pragma once

#include "engine/runtime/arena.h"
#include "kernels/core/device.h"
#include "kernels/ops.h"

namespace dstrain {

struct Site {
  Ops& ops;
  Device& device;
  Stream& stream;
  const Arena& arena;

  [[nodiscard]] Tensor buffer(BufferRef ref) const { return arena.buffer(ref); }
};

}  // namespace dstrain
