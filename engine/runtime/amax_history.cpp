#include "engine/runtime/amax_history.h"

#include <algorithm>
#include <cmath>

namespace dstrain {

std::int32_t AmaxHistory::exponent_of(float amax, float largest) {
  constexpr std::int32_t kMost = 100;
  std::int32_t exponent = std::ilogb(amax) - std::ilogb(largest);
  if (std::ldexp(static_cast<double>(largest), exponent) < static_cast<double>(amax)) {
    ++exponent;
  }
  return std::clamp(exponent, -kMost, kMost);
}

void AmaxHistory::add_step(float amax, float largest, std::int64_t length) {
  for (AmaxPeak& peak : peaks_) {
    ++peak.age;
  }
  std::erase_if(peaks_, [length](const AmaxPeak& peak) { return peak.age >= length; });
  if (amax > 0.0F && std::isfinite(amax)) {
    const std::int32_t exponent = exponent_of(amax, largest);
    while (!peaks_.empty() && peaks_.back().exponent <= exponent) {
      peaks_.pop_back();
    }
    peaks_.push_back({.age = 0, .exponent = exponent});
  }
}

std::optional<std::int32_t> AmaxHistory::exponent() const {
  return peaks_.empty() ? std::nullopt : std::optional(peaks_.front().exponent);
}

}  // namespace dstrain
