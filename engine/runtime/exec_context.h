// ExecContext: what a layer needs to run: operations, the compute stream, its buffers and the
// parameters of its unit. A bundle of references made once by the engine; owns nothing.
#pragma once

#include "engine/plan/blueprint.h"
#include "engine/runtime/arena.h"
#include "kernels/core/device.h"
#include "kernels/ops.h"

namespace dstrain {

struct ExecContext {
  Ops& ops;
  Device& device;
  Stream& compute;
  const Blueprint& blueprint;
  Arena& arena;

  [[nodiscard]] Tensor buffer(BufferRef ref, int slot = 0) const { return arena.buffer(ref, slot); }
  /// A parameter as the model computes with it.
  [[nodiscard]] ConstTensor param(ParamRef ref) const {
    return param_view(blueprint, arena.unit(RegionKind::kParameters, ref.unit), ref);
  }
  /// `count` neighbouring parameters as one tensor.
  [[nodiscard]] ConstTensor params(ParamRef first, int count, Shape shape) const {
    return param_view(blueprint, arena.unit(RegionKind::kParameters, first.unit), first, count,
                      shape);
  }
};

/// Where backward writes the gradients of one unit, and whether it adds to what is there.
struct GradTarget {
  const Blueprint* blueprint = nullptr;
  Tensor unit;  ///< f32, flat
  Write write = Write::kOverwrite;

  [[nodiscard]] Tensor param(ParamRef ref) const { return param_view(*blueprint, unit, ref); }
  [[nodiscard]] Tensor params(ParamRef first, int count, Shape shape) const {
    return param_view(*blueprint, unit, first, count, shape);
  }
};

}  // namespace dstrain
