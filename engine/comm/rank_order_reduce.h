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

/// The dtype of a reduction's partial results: f32 for bf16 and f16, otherwise `dtype`.
DType partial_dtype(DType dtype);

enum class Total : std::uint8_t { kPartial, kFinal };
/// A part of such a reduction, for members that follow each other: (before op inputs[0]) op
/// inputs[1] op …. `before` is partial, or nullptr where these members are the first; `out` is what
/// `total` says, and may be any of them that has its type.
void continue_in_rank_order(const void* before,
                            std::span<const void* const> inputs,
                            void* out,
                            Total total,
                            DType dtype,
                            ReduceOp op,
                            std::int64_t elements);

}  // namespace dstrain
