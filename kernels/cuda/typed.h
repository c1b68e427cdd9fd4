// The switch over the compute dtype that every operation of the GPU starts with.
#pragma once

#include "kernels/core/expect.h"

namespace dstrain {

/// Calls f.operator()<float>(), <BF16>() or <F16>() by dtype.
template <typename F>
void with_dtype(DType dtype, F&& f) {
  expect_compute_dtype(dtype, "compute dtype");
  if (dtype == DType::kF32) {
    f.template operator()<float>();
  } else if (dtype == DType::kBF16) {
    f.template operator()<BF16>();
  } else {
    f.template operator()<F16>();
  }
}

}  // namespace dstrain
