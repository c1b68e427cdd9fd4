// A NaN's sign says nothing, and depends on which instruction made it; printed it would be "-nan".
#pragma once

#include <cmath>
#include <limits>

namespace dstrain {

inline double plain_nan(double value) {
  return std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value;
}

}  // namespace dstrain
