#include "kernels/cpu/matmul_pack.h"

// GCC 12 warns about the undefined values that its own AVX-512 intrinsics start from (PR 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>

#define DSTRAIN_AVX512 [[gnu::target("avx512f,avx512bw,avx512vl,avx512dq")]]

namespace dstrain {
namespace {

/// 16 rows of 16 pairs of bf16, transposed as 32-bit elements.
struct Square {
  __m512i row[16];
};

DSTRAIN_AVX512 [[gnu::always_inline]] inline void transpose_pairs(Square& s) {
  __m512i t[16];
  for (int k = 0; k < 16; k += 2) {
    t[k] = _mm512_unpacklo_epi32(s.row[k], s.row[k + 1]);
    t[k + 1] = _mm512_unpackhi_epi32(s.row[k], s.row[k + 1]);
  }
  __m512i u[16];
  for (int k = 0; k < 16; k += 4) {
    u[k] = _mm512_unpacklo_epi64(t[k], t[k + 2]);
    u[k + 1] = _mm512_unpackhi_epi64(t[k], t[k + 2]);
    u[k + 2] = _mm512_unpacklo_epi64(t[k + 1], t[k + 3]);
    u[k + 3] = _mm512_unpackhi_epi64(t[k + 1], t[k + 3]);
  }
  // u[4g + j] has, in its four lanes, columns j, j+4, j+8, j+12 of rows 4g … 4g+3.
  for (int j = 0; j < 4; ++j) {
    const __m512i low = _mm512_shuffle_i32x4(u[j], u[j + 4], 0x88);
    const __m512i high = _mm512_shuffle_i32x4(u[j], u[j + 4], 0xDD);
    const __m512i low2 = _mm512_shuffle_i32x4(u[j + 8], u[j + 12], 0x88);
    const __m512i high2 = _mm512_shuffle_i32x4(u[j + 8], u[j + 12], 0xDD);
    s.row[j] = _mm512_shuffle_i32x4(low, low2, 0x88);
    s.row[j + 8] = _mm512_shuffle_i32x4(low, low2, 0xDD);
    s.row[j + 4] = _mm512_shuffle_i32x4(high, high2, 0x88);
    s.row[j + 12] = _mm512_shuffle_i32x4(high, high2, 0xDD);
  }
}

/// Two rows of 16, interleaved.
DSTRAIN_AVX512 [[gnu::always_inline]] inline __m512i interleave(const BF16* even, const BF16* odd) {
  const __m512i low =
      _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(even)));
  const __m512i high =
      _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(odd)));
  return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

/// Rounds to nearest even; NaN stays NaN.
DSTRAIN_AVX512 [[gnu::always_inline]] inline __m256i rounded_to_bf16(__m512 value) {
  const __m512i bits = _mm512_castps_si512(value);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_srli_epi32(
      _mm512_add_epi32(bits, _mm512_add_epi32(_mm512_set1_epi32(0x7fff), odd)), 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  rounded = _mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7fc0));
  return _mm512_cvtepi32_epi16(rounded);
}

DSTRAIN_AVX512 [[gnu::always_inline]] inline __m512 widen(const BF16* from) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(
      _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))), 16));
}

}  // namespace

// Whole rows of all panels first: memory is read in long runs.
DSTRAIN_AVX512 void pack_panels(const BF16* in,
                                std::int64_t stride,
                                std::int64_t rows,
                                std::int64_t panels,
                                BF16* out,
                                std::int64_t panel_stride) {
  for (std::int64_t row = 0; row < rows; row += 2) {
    const BF16* even = in + row * stride;
    for (std::int64_t panel = 0; panel < panels; ++panel) {
      BF16* const to = out + panel * panel_stride + row * kPanelColumns;
      for (std::int64_t column = 0; column < kPanelColumns; column += 16) {
        _mm512_storeu_si512(to + 2 * column, interleave(even + column, even + stride + column));
      }
      even += kPanelColumns;
    }
  }
}

// 16 columns at a time: as many runs of memory as the prefetchers follow.
DSTRAIN_AVX512 void pack_transposed_panel(const BF16* in,
                                          std::int64_t stride,
                                          std::int64_t rows,
                                          BF16* out) {
  for (std::int64_t column = 0; column < kPanelColumns; column += 16) {
    for (std::int64_t row = 0; row < rows; row += 32) {
      Square square;
      for (int k = 0; k < 16; ++k) {
        square.row[k] = _mm512_loadu_si512(in + (column + k) * stride + row);
      }
      transpose_pairs(square);
      for (int k = 0; k < 16; ++k) {
        _mm512_storeu_si512(out + (row / 2 + k) * 2 * kPanelColumns + 2 * column, square.row[k]);
      }
    }
  }
}

DSTRAIN_AVX512 void transpose(const BF16* in,
                              std::int64_t in_stride,
                              std::int64_t rows,
                              std::int64_t columns,
                              BF16* out,
                              std::int64_t out_stride) {
  for (std::int64_t row = 0; row < rows; row += 32) {
    for (std::int64_t column = 0; column < columns; column += 16) {
      Square square;
      for (int k = 0; k < 16; ++k) {
        const BF16* const even = in + (row + 2 * k) * in_stride + column;
        square.row[k] = interleave(even, even + in_stride);
      }
      transpose_pairs(square);
      for (int k = 0; k < 16; ++k) {
        _mm512_storeu_si512(out + (column + k) * out_stride + row, square.row[k]);
      }
    }
  }
}

DSTRAIN_AVX512 void finish_block(const float* sums,
                                 std::int64_t rows,
                                 std::int64_t columns,
                                 const BF16* bias,
                                 const FinishedBlock& out,
                                 Write write) {
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < columns; column += 16) {
      __m512 value = _mm512_loadu_ps(sums + row * columns + column);
      if (bias != nullptr) {
        value = _mm512_add_ps(value, widen(bias + column));
      }
      const std::int64_t place = row * out.stride + column;
      if (out.dtype == DType::kBF16) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(static_cast<BF16*>(out.c) + place),
                            rounded_to_bf16(value));
        continue;
      }
      float* const c = static_cast<float*>(out.c) + place;
      _mm512_storeu_ps(c, write == Write::kAdd ? _mm512_add_ps(value, _mm512_loadu_ps(c)) : value);
    }
  }
}

}  // namespace dstrain

#pragma GCC diagnostic pop
