#include "engine/config/sequence_ramp.h"

#include <algorithm>
#include <cmath>

namespace dstrain {
namespace {

/// Once a length is the longest, it stays.
std::int64_t discrete_length(const SequenceRamp& ramp, std::int64_t step) {
  std::int64_t length = ramp.lengths.front();
  for (std::size_t i = 0; i < ramp.lengths.size(); ++i) {
    length = ramp.lengths[i];
    const bool is_last = i == ramp.last_steps.size() || step <= ramp.last_steps[i];
    if (is_last || length >= ramp.longest) {
      break;
    }
  }
  return length;
}

}  // namespace

std::int64_t SequenceRamp::length_at(std::int64_t step) const {
  if (shortest == longest) {
    return longest;
  }
  if (schedule == LengthSchedule::kFixedDiscrete) {
    return discrete_length(*this, step);
  }
  const double degree = schedule == LengthSchedule::kFixedRoot ? root_degree : 1.0;
  const double share =
      std::pow(static_cast<double>(step) / static_cast<double>(total_steps), 1.0 / degree);
  const double grown =
      std::floor(share * static_cast<double>(longest - shortest) + static_cast<double>(shortest));
  if (grown >= static_cast<double>(longest + multiple_of)) {
    return longest;
  }
  const auto whole = static_cast<std::int64_t>(grown);
  const std::int64_t first = (shortest + multiple_of - 1) / multiple_of * multiple_of;
  return std::min(std::max(whole - whole % multiple_of, first), longest);
}

}  // namespace dstrain
