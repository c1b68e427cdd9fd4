// The switch over the compute dtype that every operation of the CPU starts with.
#pragma once

#include "kernels/core/expect.h"
#include "kernels/cpu/vector/loops.h"

namespace dstrain {

/// Calls f(loops.f32), f(loops.bf16) or f(loops.f16).
template <typename F>
void with_loops(const VectorLoops& loops, DType dtype, F&& f) {
  expect_compute_dtype(dtype, "compute dtype");
  if (dtype == DType::kF32) {
    f(loops.f32);
  } else if (dtype == DType::kBF16) {
    f(loops.bf16);
  } else {
    f(loops.f16);
  }
}

}  // namespace dstrain
