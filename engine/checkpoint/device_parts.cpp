#include "engine/checkpoint/device_parts.h"

#include <algorithm>
#include <exception>

#include "kernels/core/check.h"

namespace dstrain {
namespace {

/// Waits at the end of its scope, since memory that is being copied to must not be freed earlier.
class WaitsForCopies {
 public:
  explicit WaitsForCopies(Stream& stream) : stream_(stream) {}
  WaitsForCopies(const WaitsForCopies&) = delete;
  WaitsForCopies& operator=(const WaitsForCopies&) = delete;
  ~WaitsForCopies() {
    try {
      stream_.synchronize();
    } catch (const std::exception&) {  // the next wait reports it
    }
  }

 private:
  Stream& stream_;
};

}  // namespace

void DeviceParts::read(Device& device,
                       ConstTensor tensor,
                       const std::function<void(std::span<const std::byte>)>& visit) {
  const std::int64_t bytes = tensor.bytes();
  check(bytes <= largest_bytes_, "a tensor of {} bytes, at most {}", bytes, largest_bytes_);
  for (DeviceMemory& part : parts_) {
    if (part.bytes() == 0) {
      part = device.allocate_host(std::min(kPartBytes, largest_bytes_),
                                  "parts of tensors on their way to a checkpoint");
    }
  }
  Stream& stream = device.compute_stream();
  const WaitsForCopies waits(stream);
  const auto* const data = static_cast<const std::byte*>(tensor.data());
  const auto size_at = [&](std::int64_t begin) { return std::min(kPartBytes, bytes - begin); };
  std::array<Event, 2> copied;
  const auto fetch = [&](std::int64_t begin) {
    const auto place = static_cast<std::size_t>(begin / kPartBytes % 2);
    device.copy_to_host({data + begin, DType::kU8, Shape{size_at(begin)}}, parts_[place].data(),
                        stream);
    copied[place] = stream.record();
  };
  if (bytes > 0) {
    fetch(0);
  }
  for (std::int64_t begin = 0; begin < bytes; begin += kPartBytes) {
    if (begin + kPartBytes < bytes) {
      fetch(begin + kPartBytes);
    }
    const auto place = static_cast<std::size_t>(begin / kPartBytes % 2);
    stream.wait_until(copied[place].ticket);
    visit({static_cast<const std::byte*>(parts_[place].data()),
           static_cast<std::size_t>(size_at(begin))});
  }
}

}  // namespace dstrain
