// The time that a backend's own products take on the shapes of a model's linear layers, which is
// what would remain of a step if everything else were free. It is the measured ceiling on a GPU,
// where there is no second library to compare with.
#pragma once

#include <span>

#include "kernels/backend.h"
#include "tests/bench/matmul_ceiling.h"

namespace dstrain::bench {

/// Seconds of forward, backward-input and backward-weight of all the layers, as the engine asks for
/// them: operands in `dtype`, weight gradients added to f32. Layers with large outputs are measured
/// with fewer tokens, as the loss head's chunks are, and scaled. Values are random: a GPU is slower
/// on them than on zeros.
double product_seconds(Backend& backend, std::span<const LinearShape> layers, DType dtype);

/// Floating-point operations a second of one product n × n × n in `dtype`.
double square_product_flops(Backend& backend, std::int64_t n, DType dtype);

}  // namespace dstrain::bench
