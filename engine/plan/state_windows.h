// StateWindows: how the optimizer goes over masters and moments that lie in another space than what
// the model computes with. What a rank owns of all its units, padding included, is one row of
// elements, unit after unit, as its regions of states have it. It passes in windows of one size,
// each with a slot in memory for whatever is not within reach of the optimizer:
//
//   read, brought down | updated | written, brought up       one slot each:
//   window i+1, i+2    | i       | i-1                        4 slots are enough for all to overlap
//
// Pure arithmetic.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "kernels/core/dtype.h"

namespace dstrain {

/// The tensors that may pass through a window.
enum class WindowTensor : std::uint8_t {
  kGradient,    ///< from the device
  kParameters,  ///< to the device, or to the disk: what masters round to
  kMaster,      ///< from and to the disk, as the next two; parameters that have no master are one
  kFirstMoment,
  kSecondMoment
};
constexpr std::size_t kNumWindowTensors = 5;

struct WindowOptions {
  std::int64_t most_elements = std::int64_t{1} << 20;
  int slots = 4;
};

class StateWindows {
 public:
  /// Windows begin at multiples of this, so that what they have of any dtype begins at a block of
  /// the disk.
  static constexpr std::int64_t kElementUnit = 4096;

  StateWindows() = default;
  /// `passing`: the dtypes of what passes through windows. A row of `elements` elements.
  using Passing = std::array<std::optional<DType>, kNumWindowTensors>;
  StateWindows(std::int64_t elements, const Passing& passing, const WindowOptions& options);

  /// The number of windows.
  [[nodiscard]] std::int64_t count() const;
  [[nodiscard]] std::int64_t begin(std::int64_t window) const { return window * size_; }
  [[nodiscard]] std::int64_t end(std::int64_t window) const;
  [[nodiscard]] int slots() const { return slots_; }
  /// The bytes of all slots together.
  [[nodiscard]] std::int64_t bytes() const { return slots_ * slot_bytes_; }
  [[nodiscard]] std::optional<DType> passing(WindowTensor tensor) const {
    return passing_.at(static_cast<std::size_t>(tensor));
  }
  /// The place in the memory of all slots at which a window's tensor begins.
  [[nodiscard]] std::int64_t offset_bytes(std::int64_t window, WindowTensor tensor) const;
  [[nodiscard]] std::int64_t size() const { return size_; }

 private:
  std::int64_t elements_ = 0;
  std::int64_t size_ = 0;  // of a window, in elements
  int slots_ = 0;
  Passing passing_{};
  std::array<std::int64_t, kNumWindowTensors> offsets_{};  // in a slot, bytes
  std::int64_t slot_bytes_ = 0;
};

}  // namespace dstrain
