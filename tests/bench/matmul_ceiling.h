// The measured ceiling of a linear layer's matrix products on this machine: the best that oneDNN
// reaches on exactly these shapes, with operands already packed the way it likes best (which costs
// a training step time, so no step reaches the ceiling), or CpuMatmul where that is faster still.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/core/dtype.h"

namespace dstrain::bench {

struct LinearShape {
  std::int64_t tokens = 0;
  std::int64_t inputs = 0;
  std::int64_t outputs = 0;
  std::int64_t count = 1;  ///< layers of this shape
};

enum class LinearProduct : std::uint8_t { kForward, kBackwardInput, kBackwardWeight };

struct VariantTime {
  std::string name;
  double seconds = 0.0;
};

/// The best time of each way to compute a product, CpuMatmul first. Operands in `dtype`; the
/// weight's gradient in f32. The ways take turns, so that disturbances of the machine affect all.
std::vector<VariantTime> time_variants(const LinearShape& shape,
                                       LinearProduct product,
                                       DType dtype,
                                       int threads);

/// Seconds for forward, backward-input and backward-weight of all the layers, each product by its
/// fastest variant.
double matmul_ceiling_seconds(const std::vector<LinearShape>& layers, DType dtype, int threads);

}  // namespace dstrain::bench
