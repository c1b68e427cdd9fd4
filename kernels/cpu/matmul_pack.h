// Rearranging bf16 matrices into what oneDNN's tile (AMX) kernels read fastest, with AVX-512:
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
/// interleaved, so that it is [rows / 2, 64, 2] (oneDNN calls that BA16a64b2a). B[r, c] is
/// in[r · stride + c]; panels start `panel_stride` elements apart. Packs even numbers of rows.
void pack_panels(const BF16* in,
                 std::int64_t stride,
                 std::int64_t rows,
                 std::int64_t panels,
                 BF16* out,
                 std::int64_t panel_stride);

/// One panel where B is stored by columns: B[r, c] is in[c · stride + r].
void pack_transposed_panel(const BF16* in, std::int64_t stride, std::int64_t rows, BF16* out);

/// What `transpose` takes columns in multiples of.
inline constexpr std::int64_t kTransposeColumns = 16;

/// out[c · out_stride + r] = in[r · in_stride + c]; rows a multiple of 32, columns of 16.
void transpose(const BF16* in,
               std::int64_t in_stride,
               std::int64_t rows,
               std::int64_t columns,
               BF16* out,
               std::int64_t out_stride);

/// Where a block of C lies: rows `stride` elements apart, bf16 (rounded to nearest even) or f32.
struct FinishedBlock {
  void* c;
  DType dtype;
  std::int64_t stride;
};

/// out = or (f32 only) += sums + bias (optional). Columns a multiple of 16.
void finish_block(const float* sums,
                  std::int64_t rows,
                  std::int64_t columns,
                  const BF16* bias,
                  const FinishedBlock& out,
                  Write write);

}  // namespace dstrain
