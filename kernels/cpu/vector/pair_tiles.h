// PairTiles: bf16 operands for flash_attention.h, for instructions that multiply pairs of bf16 and
// add both products to a sum in f32. A left operand lies in rows; of a right one two rows lie in
// one, as pairs: right[k/2][column][k mod 2]. Probabilities and their gradients are rounded to bf16
// before they are multiplied. Head dims that are no multiple of 32, and f32 and f16 tensors, take
// FloatTiles: bf16 would lose three of f16's bits.
//
// Product is what multiplies: a type with
//   Registers     what is to be set up, for as long as one task lasts
//   multiply      static: c[rows][columns] (+)= a · b; rows, columns and inner are multiples of 32
#pragma once

#include "kernels/cpu/vector/flash_attention.h"
#include "kernels/cpu/vector/float_tiles.h"
#include "kernels/cpu/vector/loops.h"

namespace dstrain::DSTRAIN_ISA {

constexpr std::int64_t kPairDepth = 32;  ///< a head dim is a multiple of it

using MemoryBits [[gnu::aligned(2), gnu::may_alias]] = VecBits;

/// Row `first` in the low halves, row `second` in the high ones.
DSTRAIN_INLINE VecBits interleaved(VecHalf first, VecHalf second) {
  return widened(first) | (widened(second) << 16);
}

template <typename Product>
struct PairTiles : Product {
  using Element = BF16;

  DSTRAIN_INLINE static std::int64_t padded(std::int64_t depth) { return depth; }
  DSTRAIN_INLINE static const BF16* column(const BF16* right, std::int64_t index) {
    return right + 2 * index;
  }
  DSTRAIN_INLINE static void rows_left(
      const BF16* x, std::int64_t stride, std::int64_t rows, std::int64_t depth, BF16* packed) {
    for (std::int64_t row = 0; row < kTile; ++row) {
      for (std::int64_t d = 0; d < depth; d += 2 * kLanes) {
        const VecBits pairs =
            row < rows ? *reinterpret_cast<const MemoryBits*>(x + row * stride + d) : VecBits{};
        *reinterpret_cast<MemoryBits*>(packed + row * depth + d) = pairs;
      }
    }
  }
  DSTRAIN_INLINE static void rows_right(
      const BF16* x, std::int64_t stride, std::int64_t rows, std::int64_t depth, BF16* packed) {
    for (std::int64_t row = 0; row < kTile; row += 2) {
      for (std::int64_t d = 0; d < depth; d += kLanes) {
        const VecHalf first = half_at(x, stride, rows, row, d);
        const VecHalf second = half_at(x, stride, rows, row + 1, d);
        *reinterpret_cast<MemoryBits*>(packed + row * depth + 2 * d) = interleaved(first, second);
      }
    }
  }
  /// Two elements of a row are one 32-bit lane: transposing those gives the pairs wanted.
  DSTRAIN_INLINE static void columns_right(
      const BF16* x, std::int64_t stride, std::int64_t rows, std::int64_t depth, BF16* packed) {
    columns_of(reinterpret_cast<const float*>(x), stride / 2, rows, depth / 2,
               reinterpret_cast<float*>(packed));
  }
  /// The same, and then the pairs taken apart.
  [[gnu::noinline]] static void columns_left(
      const BF16* x, std::int64_t stride, std::int64_t rows, std::int64_t depth, BF16* packed) {
    for (std::int64_t d = 0; d < depth; d += 2 * kLanes) {
      for (std::int64_t row = 0; row < kTile; row += kLanes) {
        Vec square[kLanes];
#pragma GCC unroll 16
        for (int lane = 0; lane < kLanes; ++lane) {
          square[lane] = row + lane < rows
                             ? load(reinterpret_cast<const float*>(x + (row + lane) * stride + d))
                             : Vec{};
        }
        transpose_square(square);
#pragma GCC unroll 16
        for (int lane = 0; lane < kLanes; ++lane) {
          const VecBits pairs = reinterpret_cast<VecBits>(square[lane]);
          BF16* const to = packed + (d + 2 * lane) * kTile + row;
          *reinterpret_cast<MemoryHalf*>(to) = __builtin_convertvector(pairs, VecHalf);
          *reinterpret_cast<MemoryHalf*>(to + kTile) =
              __builtin_convertvector(pairs >> 16, VecHalf);
        }
      }
    }
  }
  DSTRAIN_INLINE static BF16* tile_operand(float* /*tile*/, Carver& carver) {
    return carver.take<BF16>(kTileSize);
  }
  DSTRAIN_INLINE static void put_left(
      BF16* left, std::int64_t key, std::int64_t query, Vec even, Vec odd) {
    store(left + key * kTile + query, even);
    store(left + (key + 1) * kTile + query, odd);
  }
  DSTRAIN_INLINE static void put_right(
      BF16* right, std::int64_t key, std::int64_t query, Vec even, Vec odd) {
    *reinterpret_cast<MemoryBits*>(right + key * kTile + 2 * query) =
        interleaved(round_to_bf16(even), round_to_bf16(odd));
  }
  DSTRAIN_INLINE static void put_both(
      BF16* left, BF16* right, std::int64_t key, std::int64_t query, Vec even, Vec odd) {
    const VecHalf first = round_to_bf16(even);
    const VecHalf second = round_to_bf16(odd);
    *reinterpret_cast<MemoryHalf*>(left + key * kTile + query) = first;
    *reinterpret_cast<MemoryHalf*>(left + (key + 1) * kTile + query) = second;
    *reinterpret_cast<MemoryBits*>(right + key * kTile + 2 * query) = interleaved(first, second);
  }

 private:
  DSTRAIN_INLINE static VecHalf half_at(
      const BF16* x, std::int64_t stride, std::int64_t rows, std::int64_t row, std::int64_t d) {
    return row < rows ? *reinterpret_cast<const MemoryHalf*>(x + row * stride + d) : VecHalf{};
  }
};

inline bool fits_pairs(std::int64_t head_dim) {
  return head_dim % kPairDepth == 0;
}

template <typename Product>
void pair_forward(const AttentionTask<BF16>& task) {
  if (fits_pairs(task.head_dim)) {
    const typename Product::Registers registers;
    flash_forward<PairTiles<Product>>(task);
  } else {
    flash_forward<FloatTiles>(task);
  }
}

template <typename Product>
void pair_backward(const AttentionTask<BF16>& task) {
  if (fits_pairs(task.head_dim)) {
    const typename Product::Registers registers;
    flash_backward<PairTiles<Product>>(task);
  } else {
    flash_backward<FloatTiles>(task);
  }
}

template <typename Product>
std::int64_t pair_scratch_bytes(std::int64_t keys, std::int64_t head_dim) {
  return fits_pairs(head_dim) ? flash_scratch_bytes<PairTiles<Product>>(keys, head_dim)
                              : flash_scratch_bytes<FloatTiles>(keys, head_dim);
}

/// Attention of bf16 tensors.
template <typename Product>
void fill_pair_attention(VectorLoops* loops) {
  loops->bf16.attention_scratch_bytes = pair_scratch_bytes<Product>;
  loops->bf16.attention_forward = pair_forward<Product>;
  loops->bf16.attention_backward = pair_backward<Product>;
}

}  // namespace dstrain::DSTRAIN_ISA
