#include "engine/plan/state_windows.h"

#include <algorithm>

#include "kernels/core/check.h"

namespace dstrain {

StateWindows::StateWindows(std::int64_t elements,
                           const Passing& passing,
                           const WindowOptions& options)
    : elements_(elements), passing_(passing) {
  const auto in_units = [](std::int64_t count) {
    return (count + kElementUnit - 1) / kElementUnit * kElementUnit;
  };
  size_ = std::max(kElementUnit, in_units(std::min(options.most_elements, elements)));
  slots_ = static_cast<int>(std::min<std::int64_t>(options.slots, count()));
  for (std::size_t i = 0; i < kNumWindowTensors; ++i) {
    offsets_[i] = slot_bytes_;
    slot_bytes_ += passing[i] ? size_ * size_of(*passing[i]) : 0;
  }
}

std::int64_t StateWindows::count() const {
  return size_ == 0 ? 0 : (elements_ + size_ - 1) / size_;
}

std::int64_t StateWindows::end(std::int64_t window) const {
  return std::min(elements_, (window + 1) * size_);
}

std::int64_t StateWindows::offset_bytes(std::int64_t window, WindowTensor tensor) const {
  const auto index = static_cast<std::size_t>(tensor);
  check(passing_.at(index).has_value(), "tensor {} does not pass through windows", index);
  return window % slots_ * slot_bytes_ + offsets_.at(index);
}

}  // namespace dstrain
