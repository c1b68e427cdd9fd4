#include "kernels/cpu/matmul_pack.h"

// GCC 12 warns about the undefined values that its own AVX-512 intrinsics start from (PR 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <algorithm>

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

// Whole rows of all panels first: memory is read in long runs.
DSTRAIN_AVX512 void pack_rows(const BF16* in,
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

/// 32 rows of one panel, of which only some rows and columns exist.
void pack_edge(const PackSource& source,
               std::int64_t first_row,
               std::int64_t first_column,
               BF16* out) {
  BF16 edge[kPanelRows * kPanelColumns] = {};
  const std::int64_t rows = std::min(kPanelRows, source.rows - first_row);
  const std::int64_t columns = std::min(kPanelColumns, source.columns - first_column);
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < columns; ++column) {
      const std::int64_t r = first_row + row;
      const std::int64_t c = first_column + column;
      edge[row * kPanelColumns + column] =
          source.b[source.transposed ? c * source.stride + r : r * source.stride + c];
    }
  }
  pack_rows(edge, kPanelColumns, kPanelRows, 1, out, 0);
}

/// 32 rows; columns a multiple of 16.
DSTRAIN_AVX512 void transpose_strip(const BF16* in,
                                    std::int64_t in_stride,
                                    std::int64_t columns,
                                    BF16* out,
                                    std::int64_t out_stride) {
  for (std::int64_t column = 0; column < columns; column += 16) {
    Square square;
    for (int k = 0; k < 16; ++k) {
      const BF16* const even = in + 2 * k * in_stride + column;
      square.row[k] = interleave(even, even + in_stride);
    }
    transpose_pairs(square);
    for (int k = 0; k < 16; ++k) {
      _mm512_storeu_si512(out + (column + k) * out_stride, square.row[k]);
    }
  }
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

DSTRAIN_AVX512 [[gnu::always_inline]] inline __m512 widen(const BF16* from, __mmask16 mask) {
  return _mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from)), 16));
}

}  // namespace

void pack_panels(const PackSource& source, BF16* out, std::int64_t panel_stride) {
  const std::int64_t rows = source.rows / kPanelRows * kPanelRows;
  const std::int64_t panels = source.columns / kPanelColumns;
  if (source.transposed) {
    for (std::int64_t panel = 0; panel < panels; ++panel) {
      pack_transposed_panel(source.b + panel * kPanelColumns * source.stride, source.stride, rows,
                            out + panel * panel_stride);
    }
  } else {
    pack_rows(source.b, source.stride, rows, panels, out, panel_stride);
  }
  for (std::int64_t panel = 0; panel * kPanelColumns < source.columns; ++panel) {
    for (std::int64_t row = panel < panels ? rows : 0; row < source.rows; row += kPanelRows) {
      pack_edge(source, row, panel * kPanelColumns,
                out + panel * panel_stride + row * kPanelColumns);
    }
  }
}

void transpose(const BF16* in,
               std::int64_t in_stride,
               std::int64_t rows,
               std::int64_t columns,
               BF16* out,
               std::int64_t out_stride) {
  const std::int64_t whole_rows = rows / kPanelRows * kPanelRows;
  const std::int64_t whole_columns = columns / 16 * 16;
  for (std::int64_t row = 0; row < whole_rows; row += kPanelRows) {
    transpose_strip(in + row * in_stride, in_stride, whole_columns, out + row, out_stride);
  }
  for (std::int64_t column = 0; whole_rows < rows && column < whole_columns; column += 16) {
    BF16 edge[kPanelRows * 16] = {};
    for (std::int64_t row = whole_rows; row < rows; ++row) {
      std::copy_n(in + row * in_stride + column, 16, edge + (row - whole_rows) * 16);
    }
    transpose_strip(edge, 16, 16, out + column * out_stride + whole_rows, out_stride);
  }
  const std::int64_t padded_rows = (rows + kPanelRows - 1) / kPanelRows * kPanelRows;
  for (std::int64_t column = whole_columns; column < columns; ++column) {
    for (std::int64_t row = 0; row < padded_rows; ++row) {
      out[column * out_stride + row] = row < rows ? in[row * in_stride + column] : BF16{};
    }
  }
}

DSTRAIN_AVX512 void finish_block(const float* sums,
                                 std::int64_t sums_stride,
                                 std::int64_t rows,
                                 std::int64_t columns,
                                 const BF16* bias,
                                 const FinishedBlock& out,
                                 Write write) {
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < columns; column += 16) {
      const std::int64_t left = columns - column;
      const auto mask = static_cast<__mmask16>(left >= 16 ? 0xffffU : (1U << left) - 1U);
      __m512 value = _mm512_maskz_loadu_ps(mask, sums + row * sums_stride + column);
      if (bias != nullptr) {
        value = _mm512_add_ps(value, widen(bias + column, mask));
      }
      const std::int64_t place = row * out.stride + column;
      if (out.dtype == DType::kBF16) {
        _mm256_mask_storeu_epi16(static_cast<BF16*>(out.c) + place, mask, rounded_to_bf16(value));
        continue;
      }
      float* const c = static_cast<float*>(out.c) + place;
      if (write == Write::kAdd) {
        value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, c));
      }
      _mm512_mask_storeu_ps(c, mask, value);
    }
  }
}

}  // namespace dstrain

#pragma GCC diagnostic pop
