// Int8Code: a matrix in 8 bits a number, as bitsandbytes stores it (LLM.int8(), Dettmers et al.
// 2022, §2): of each row of the matrix, rounded to f16, the largest magnitude is 127.
//
//   x = q · (largest · 1/127)
//
// Where ranks have columns of a matrix, a row's largest magnitude is that of the whole row, so that
// all layouts compute with the same numbers.
//
//   | q: a byte a number, row by row | largest magnitudes of the rows, f32 |
#pragma once

#include <cstdint>

#include "kernels/math/host_device.h"

namespace dstrain {

struct Int8Code {
  static constexpr std::int64_t kMultiple = 64;  ///< of bytes, that a coded matrix takes

  std::int64_t rows = 0;     ///< of the part
  std::int64_t columns = 0;  ///< likewise
  std::int64_t first_row = 0;
  std::int64_t first_column = 0;
  std::int64_t all_rows = 0;
  std::int64_t all_columns = 0;

  DSTRAIN_HD constexpr std::int64_t numel() const { return rows * columns; }
  /// The first byte of the largest magnitudes.
  DSTRAIN_HD constexpr std::int64_t largest_at() const { return rounded_up(numel(), 4); }
  DSTRAIN_HD constexpr std::int64_t bytes() const {
    return rounded_up(largest_at() + 4 * rows, kMultiple);
  }
  /// What a row's numbers are multiplied by.
  DSTRAIN_HD static float scale_of(float largest) { return largest * (1.0F / 127.0F); }

  friend constexpr bool operator==(const Int8Code&, const Int8Code&) = default;

 private:
  DSTRAIN_HD static constexpr std::int64_t rounded_up(std::int64_t n, std::int64_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
  }
};

}  // namespace dstrain
