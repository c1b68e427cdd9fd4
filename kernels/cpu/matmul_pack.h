// Rearranges bf16 matrices into what oneDNN's tile (AMX) kernels read fastest, with AVX-512, at
// several times the speed of its own reorders. Only for processors that have AVX-512 BW.
#pragma once

#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/ops.h"

namespace dstrain {

/// Columns and rows of a packed panel; a packed matrix consists of whole panels.
inline constexpr std::int64_t kPanelColumns = 64;
inline constexpr std::int64_t kPanelRows = 32;

/// A panel has `rows` (a multiple of 32) × 64 of B, for a sum over rows: pairs of rows are
/// interleaved, so that it is [rows / 2, 64, 2] (oneDNN calls that BA16a64b2a).
struct PackSource {
  const BF16* b;
  std::int64_t stride;
  bool transposed;       ///< B[r, c] is b[c · stride + r], not b[r · stride + c]
  std::int64_t rows;     ///< what is beyond these and up to a multiple of 32 becomes zero,
  std::int64_t columns;  ///< and so does what is beyond these and up to a multiple of 64
};

/// Panels start `panel_stride` elements apart.
void pack_panels(const PackSource& source, BF16* out, std::int64_t panel_stride);

/// out[c · out_stride + r] = in[r · in_stride + c], and 0 from `rows` up to a multiple of 32.
void transpose(const BF16* in,
               std::int64_t in_stride,
               std::int64_t rows,
               std::int64_t columns,
               BF16* out,
               std::int64_t out_stride);

/// The place of a block of C: rows `stride` elements apart, bf16 (rounded to nearest even) or f32.
struct FinishedBlock {
  void* c;
  DType dtype;
  std::int64_t stride;
};

/// out = or (f32 only) += sums + bias (optional).
void finish_block(const float* sums,
                  std::int64_t sums_stride,
                  std::int64_t rows,
                  std::int64_t columns,
                  const BF16* bias,
                  const FinishedBlock& out,
                  Write write);

}  // namespace dstrain
