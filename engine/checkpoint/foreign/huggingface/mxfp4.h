// Matrices in MXFP4 (Open Compute Project, "OCP microscaling formats", version 1.0, §5.3 and §5.4):
// numbers of 4 bits, E2M1, of which 32 neighbours share a scale of 8 bits, E8M0, a power of two.
// gpt-oss's experts come so, all of a block in two tensors of bytes:
//
//   NAME_blocks [E, outputs, inputs / 32, 16]   two numbers a byte, the first in the lower bits
//   NAME_scales [E, outputs, inputs / 32]
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/plan/shard_map.h"
#include "kernels/core/tensor.h"

namespace dstrain {

inline constexpr std::int64_t kMxfp4Block = 32;  ///< numbers that share a scale

/// A matrix of ours among the rows of such tensors.
struct Mxfp4Matrix {
  const std::byte* blocks = nullptr;  ///< of row 0 of theirs
  const std::byte* scales = nullptr;
  std::int64_t first_row = 0;  ///< row 0 of ours
  std::int64_t row_step = 1;   ///< from one row of ours to the next
  std::int64_t columns = 0;    ///< a multiple of kMxfp4Block
};

/// Fills `out`, piece.flat.size() elements of f32, bf16 or f16, with a piece of the matrix. bf16
/// and f32 hold every number of it; f16 gets the nearest.
void read_mxfp4(const Mxfp4Matrix& matrix, const Piece& piece, Tensor out);

}  // namespace dstrain
