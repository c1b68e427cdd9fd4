// The one place where collectives add: elements are combined in rank order, whatever carried them,
// so that every Communicator gives the same bits.
#pragma once

#include <cstdint>
#include <span>

#include "engine/comm/communicator.h"
#include "kernels/core/dtype.h"

namespace dstrain {

/// out[i] = inputs[0][i] op inputs[1][i] op …, left to right, for `elements` elements. bf16 and
/// f16 are combined in f32 and rounded once; i32 wraps; kMax keeps a NaN. The result also goes to
/// `copies`. `out` and each of `copies` may be one of the inputs.
void reduce_in_rank_order(std::span<const void* const> inputs,
                          void* out,
                          DType dtype,
                          ReduceOp op,
                          std::int64_t elements,
                          std::span<void* const> copies = {});

}  // namespace dstrain
