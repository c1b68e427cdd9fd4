// GroupNormRows: the operands of a norm of groups of columns (group_norm.h), checked and as plain
// pointers, which is how the loops of all devices take them. No initialisers: it is compiled for
// every instruction set (cpu/vector/vec.h).
#pragma once

#include <cstdint>

namespace dstrain {

/// Rows [0, rows) of `groups` groups of `width` elements. Pointers that a loop does not need are
/// nullptr.
template <typename T>
struct GroupNormRows {
  std::int64_t rows;
  std::int64_t groups;
  std::int64_t width;
  float inverse_norm_width;
  float epsilon;
  float weight_offset;  ///< added to the weight
  const T* x;
  std::int64_t x_stride;  ///< from a row to the next
  const T* dy;
  std::int64_t dy_stride;
  const T* weight;
  const float* squares;   ///< [rows][groups]
  const float* products;  ///< [rows][groups]
  T* out;                 ///< y or dx
  std::int64_t out_stride;
};

}  // namespace dstrain
