// DeviceParts: brings what lies on a device to the host, part by part, for a file: the next part is
// copied while the caller writes the last. The parts lie in pinned memory, as a GPU copies to any
// other at a fraction of the speed of PCIe, by way of the driver's own pinned memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "kernels/core/device.h"

namespace dstrain {

class DeviceParts {
 public:
  /// Host memory is two parts of this size, or less where the largest tensor is smaller.
  static constexpr std::int64_t kPartBytes = std::int64_t{16} << 20;

  /// Tensors have at most `largest_bytes`. Memory is taken with the first of them.
  explicit DeviceParts(std::int64_t largest_bytes) : largest_bytes_(largest_bytes) {}

  /// Calls visit(bytes) for every part in order, valid during the call; all of them come from one
  /// device. Throws OutOfMemory, and what `visit` throws, with no copy left under way.
  void read(Device& device,
            ConstTensor tensor,
            const std::function<void(std::span<const std::byte>)>& visit);

 private:
  const std::int64_t largest_bytes_;
  std::array<DeviceMemory, 2> parts_;
};

}  // namespace dstrain
