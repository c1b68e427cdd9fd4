// Attention with bf16 matrix tiles (AMX): eight tile registers of 16 rows × 64 bytes, of which four
// hold sums, two left operands (16 rows × 32 bf16) and two right operands (32 × 16, stored as 16
// rows of pairs: right[k/2][column][k mod 2]). Probabilities and their gradients are rounded to
// bf16 before they are multiplied, sums are f32. Head dims that are no multiple of 32, and f32
// and f16 tensors, take FloatTiles: bf16 would lose three of f16's bits.
#include "kernels/cpu/vector/flash_attention.h"
#include "kernels/cpu/vector/float_tiles.h"
#include "kernels/cpu/vector/parts.h"

namespace dstrain::DSTRAIN_ISA {
namespace {

constexpr std::int64_t kTileRows = 16;
constexpr std::int64_t kInner = 32;  ///< bf16 in a tile's row
constexpr std::int64_t kPair = 2 * kTileRows;

struct alignas(64) TileConfig {
  std::uint8_t palette;
  std::uint8_t start_row;
  std::uint8_t reserved[14];
  std::uint16_t bytes_per_row[16];
  std::uint8_t rows[16];
};

/// The tile registers, set up for the length of one task. Others (oneDNN) use them too.
struct TileRegisters {
  DSTRAIN_INLINE TileRegisters() {
    TileConfig config{};
    config.palette = 1;
    for (int tile = 0; tile < 8; ++tile) {
      config.bytes_per_row[tile] = 64;
      config.rows[tile] = kTileRows;
    }
    __asm__ volatile("ldtilecfg %0" ::"m"(config));
  }
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;
  DSTRAIN_INLINE ~TileRegisters() { _tile_release(); }
};

/// c[rows][columns] (+)= a · b; rows, columns and inner are multiples of 32. The compiler does not
/// see what the tile instructions read and write, hence the two barriers.
[[gnu::noinline]] void multiply_tiles_amx(const BF16* a,
                                          std::int64_t lda,
                                          const BF16* b,
                                          std::int64_t ldb,
                                          float* c,
                                          std::int64_t ldc,
                                          std::int64_t rows,
                                          std::int64_t columns,
                                          std::int64_t inner,
                                          bool add) {
  __asm__ volatile("" ::: "memory");
  const std::int64_t a_stride = lda * 2;
  const std::int64_t b_stride = ldb * 4;
  const std::int64_t c_stride = ldc * 4;
  for (std::int64_t column = 0; column < columns; column += kPair) {
    for (std::int64_t row = 0; row < rows; row += kPair) {
      float* const c00 = c + row * ldc + column;
      float* const c10 = c00 + kTileRows * ldc;
      if (add) {
        _tile_loadd(0, c00, c_stride);
        _tile_loadd(1, c00 + kTileRows, c_stride);
        _tile_loadd(2, c10, c_stride);
        _tile_loadd(3, c10 + kTileRows, c_stride);
      } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
      }
      for (std::int64_t k = 0; k < inner; k += kInner) {
        const BF16* const left = a + row * lda + k;
        const BF16* const right = b + k * ldb + 2 * column;
        _tile_loadd(4, left, a_stride);
        _tile_loadd(6, right, b_stride);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, right + 2 * kTileRows, b_stride);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, left + kTileRows * lda, a_stride);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
      _tile_stored(0, c00, c_stride);
      _tile_stored(1, c00 + kTileRows, c_stride);
      _tile_stored(2, c10, c_stride);
      _tile_stored(3, c10 + kTileRows, c_stride);
    }
  }
  __asm__ volatile("" ::: "memory");
}

using MemoryBits [[gnu::aligned(2), gnu::may_alias]] = VecBits;

/// Row `first` in the low halves, row `second` in the high ones.
DSTRAIN_INLINE VecBits interleaved(VecHalf first, VecHalf second) {
  return widened(first) | (widened(second) << 16);
}

struct AmxTiles {
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
  DSTRAIN_INLINE static void multiply(const BF16* a,
                                      std::int64_t lda,
                                      const BF16* b,
                                      std::int64_t ldb,
                                      float* c,
                                      std::int64_t ldc,
                                      std::int64_t rows,
                                      std::int64_t columns,
                                      std::int64_t inner,
                                      bool add) {
    multiply_tiles_amx(a, lda, b, ldb, c, ldc, rows, columns, inner, add);
  }

 private:
  DSTRAIN_INLINE static VecHalf half_at(
      const BF16* x, std::int64_t stride, std::int64_t rows, std::int64_t row, std::int64_t d) {
    return row < rows ? *reinterpret_cast<const MemoryHalf*>(x + row * stride + d) : VecHalf{};
  }
};

bool fits_tiles(std::int64_t head_dim) {
  return head_dim % kInner == 0;
}

template <typename T>
void forward_in_f32(const AttentionTask<T>& task) {
  flash_forward<FloatTiles>(task);
}

template <typename T>
void backward_in_f32(const AttentionTask<T>& task) {
  flash_backward<FloatTiles>(task);
}

std::int64_t scratch_bytes_in_f32(std::int64_t keys, std::int64_t head_dim) {
  return flash_scratch_bytes<FloatTiles>(keys, head_dim);
}

void forward_bf16(const AttentionTask<BF16>& task) {
  if (fits_tiles(task.head_dim)) {
    const TileRegisters registers;
    flash_forward<AmxTiles>(task);
  } else {
    flash_forward<FloatTiles>(task);
  }
}

void backward_bf16(const AttentionTask<BF16>& task) {
  if (fits_tiles(task.head_dim)) {
    const TileRegisters registers;
    flash_backward<AmxTiles>(task);
  } else {
    flash_backward<FloatTiles>(task);
  }
}

std::int64_t scratch_bytes_bf16(std::int64_t keys, std::int64_t head_dim) {
  return fits_tiles(head_dim) ? flash_scratch_bytes<AmxTiles>(keys, head_dim)
                              : flash_scratch_bytes<FloatTiles>(keys, head_dim);
}

template <typename T>
void fill_in_f32(TypedLoops<T>* loops) {
  loops->attention_scratch_bytes = scratch_bytes_in_f32;
  loops->attention_forward = forward_in_f32<T>;
  loops->attention_backward = backward_in_f32<T>;
}

}  // namespace

void fill_attention(VectorLoops* loops) {
  fill_in_f32(&loops->f32);
  fill_in_f32(&loops->f16);
  loops->bf16.attention_scratch_bytes = scratch_bytes_bf16;
  loops->bf16.attention_forward = forward_bf16;
  loops->bf16.attention_backward = backward_bf16;
}

}  // namespace dstrain::DSTRAIN_ISA
