// MagnitudeRows: the sizes of what the loops over rows with magnitudes of their own read and write.
#pragma once

#include <cstdint>

namespace dstrain {

/// Rows of x and another matrix of as many columns, which may lie further apart than they are long.
struct MagnitudeRows {
  std::int64_t rows = 0;
  std::int64_t width = 0;
  std::int64_t x_stride = 0;
  std::int64_t y_stride = 0;
  std::int64_t dx_stride = 0;  ///< of backward
};

}  // namespace dstrain
