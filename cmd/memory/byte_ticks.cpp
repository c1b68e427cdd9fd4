#include "cmd/memory/byte_ticks.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "kernels/core/check.h"

namespace dstrain {

ByteTicks::ByteTicks(double top_bytes) {
  check(top_bytes > 0, "an axis of {} bytes", top_bytes);
  constexpr double kUnits = 1024.0;
  for (const std::string_view larger : {"KiB", "MiB", "GiB", "TiB"}) {
    if (top_bytes < unit_bytes_ * kUnits) break;
    unit_bytes_ *= kUnits;
    unit_ = larger;
  }
  // The smallest of 1, 2, 5, 10, … of which at most six are below the top.
  constexpr double kMost = 6.0;
  const double least = top_bytes / unit_bytes_ / kMost;
  const int power = static_cast<int>(std::floor(std::log10(least)));
  for (const double factor : {10.0, 5.0, 2.0, 1.0}) {
    const double step = factor * std::pow(10.0, power);
    if (step < least) break;
    step_ = step;
    decimals_ = std::max(0, -(power + (factor == 10.0 ? 1 : 0)));
  }
  count_ = 1 + static_cast<int>(std::floor(top_bytes / unit_bytes_ / step_));
}

std::string ByteTicks::text(int index) const {
  return index == 0 ? "0" : fmt::format("{:.{}f} {}", index * step_, decimals_, unit_);
}

}  // namespace dstrain
