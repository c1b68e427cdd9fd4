// Attention of bf16 by AVX-512's dot products of pairs (vdpbf16ps: Cooper Lake, Zen 4 on), at twice
// the rate of f32. A block of 8 rows × 2 vectors of sums stays in registers.
#include <cstring>

#include <immintrin.h>

#include "kernels/cpu/vector/pair_tiles.h"
#include "kernels/cpu/vector/parts.h"

namespace dstrain::DSTRAIN_ISA {
namespace {

constexpr std::int64_t kDotRows = 8;
constexpr std::int64_t kDotVecs = 2;

DSTRAIN_INLINE __m512bh pairs_at(const BF16* at) {
  return reinterpret_cast<__m512bh>(_mm512_loadu_si512(at));
}

/// The same pair in every lane.
DSTRAIN_INLINE __m512bh pair_of(const BF16* at) {
  int pair = 0;
  std::memcpy(&pair, at, sizeof pair);
  return reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
}

DSTRAIN_INLINE void multiply_block_of_pairs(const BF16* a,
                                            std::int64_t lda,
                                            const BF16* b,
                                            std::int64_t ldb,
                                            float* c,
                                            std::int64_t ldc,
                                            std::int64_t inner,
                                            bool add) {
  __m512 sums[kDotRows][kDotVecs];
#pragma GCC unroll 8
  for (int row = 0; row < kDotRows; ++row) {
#pragma GCC unroll 2
    for (int vec = 0; vec < kDotVecs; ++vec) {
      sums[row][vec] = add ? _mm512_loadu_ps(c + row * ldc + vec * kLanes) : _mm512_setzero_ps();
    }
  }
  for (std::int64_t k = 0; k < inner; k += 2) {
    const __m512bh first = pairs_at(b + k * ldb);
    const __m512bh second = pairs_at(b + k * ldb + 2 * kLanes);
#pragma GCC unroll 8
    for (int row = 0; row < kDotRows; ++row) {
      const __m512bh left = pair_of(a + row * lda + k);
      sums[row][0] = _mm512_dpbf16_ps(sums[row][0], left, first);
      sums[row][1] = _mm512_dpbf16_ps(sums[row][1], left, second);
    }
  }
#pragma GCC unroll 8
  for (int row = 0; row < kDotRows; ++row) {
#pragma GCC unroll 2
    for (int vec = 0; vec < kDotVecs; ++vec) {
      _mm512_storeu_ps(c + row * ldc + vec * kLanes, sums[row][vec]);
    }
  }
}

struct DotProduct {
  struct Registers {
    DSTRAIN_INLINE Registers() {}  // nothing to set up
  };

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
    for (std::int64_t column = 0; column < columns; column += kDotVecs * kLanes) {
      for (std::int64_t row = 0; row < rows; row += kDotRows) {
        multiply_block_of_pairs(a + row * lda, lda, b + 2 * column, ldb, c + row * ldc + column,
                                ldc, inner, add);
      }
    }
  }
};

}  // namespace

void fill_attention(VectorLoops* loops) {
  fill_pair_attention<DotProduct>(loops);
}

}  // namespace dstrain::DSTRAIN_ISA
