// Sums in a fixed order: of all elements, and of columns. T: float, BF16 or F16.
#pragma once

#include <cstdint>

#include "kernels/core/bf16.h"
#include "kernels/core/f16.h"
#include "kernels/cuda/device/launch.h"

namespace dstrain::cuda {

enum class Of : std::uint8_t { kValues, kSquares };

/// The number of doubles of scratch that sum_elements needs.
std::int64_t sum_blocks(std::int64_t n);
/// *total = or += the sum of the elements, or of their squares.
template <typename T>
void sum_elements(const Launch& to,
                  const T* x,
                  std::int64_t n,
                  Of of,
                  double* partials,
                  double* total,
                  bool adds);
/// totals[k] = or += Σ over blocks of partials[block][k], for `count` totals.
void sum_partials(const Launch& to,
                  const double* partials,
                  std::int64_t blocks,
                  int count,
                  double* totals,
                  bool adds);

/// The two numbers of a BitSums, of the bits of x as `As` holds them; `partials`: two for each of
/// sum_blocks(n). From is As, or float.
template <typename From, typename As>
void sum_bits(const Launch& to,
              const From* x,
              std::int64_t n,
              std::uint64_t* partials,
              std::uint64_t* totals);

/// The number of chunks of rows that column_sums sums apart; it needs this · width floats of
/// scratch.
std::int64_t column_chunks(std::int64_t rows);
/// sums[width] = or += the sums over the rows of x.
template <typename T>
void column_sums(const Launch& to,
                 const T* x,
                 std::int64_t rows,
                 std::int64_t width,
                 float* partials,
                 float* sums,
                 bool adds);
/// sums[c] = or += Σ over rows of partials[row · stride + c].
void add_partial_rows(const Launch& to,
                      const float* partials,
                      std::int64_t rows,
                      std::int64_t stride,
                      std::int64_t width,
                      float* sums,
                      bool adds);

}  // namespace dstrain::cuda
