// Attention with bf16 matrix tiles (AMX): eight tile registers of 16 rows × 64 bytes, of which four
// hold sums, two left operands (16 rows × 32 bf16) and two right operands (32 × 16, as 16 rows of
// pairs).
#include "kernels/cpu/vector/pair_tiles.h"
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

struct AmxProduct {
  using Registers = TileRegisters;

  /// The compiler does not see what the tile instructions read and write, hence the two barriers.
  [[gnu::noinline]] static void multiply(const BF16* a,
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
};

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
  fill_pair_attention<AmxProduct>(loops);
}

}  // namespace dstrain::DSTRAIN_ISA
