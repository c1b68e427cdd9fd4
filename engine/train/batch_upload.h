// BatchUpload: token ids on their way to the device. Two micro-batches' worth of the host's memory,
// of the kind that copies are fastest from, used in turns: while the device still computes with
// one, the host already reads the next, and waits only for the copy before the last.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>

#include "kernels/core/device.h"
#include "kernels/core/tensor.h"

namespace dstrain {

/// Fills [B, T] inputs and targets with the samples from `first_sample` on.
using LoadBatch = std::function<void(
    std::int64_t first_sample, std::span<std::int32_t> inputs, std::span<std::int32_t> targets)>;

class BatchUpload {
 public:
  /// Of micro-batches of so many tokens, on `stream`. Both must outlive it.
  BatchUpload(Device& device, Stream& stream, std::int64_t tokens);
  BatchUpload(const BatchUpload&) = delete;
  BatchUpload& operator=(const BatchUpload&) = delete;
  /// Waits for copies under way.
  ~BatchUpload();

  /// Enqueues the copies; an empty tensor wants none. i32, `tokens` elements each.
  void upload(const LoadBatch& data, std::int64_t first_sample, Tensor inputs, Tensor targets);

 private:
  struct Buffer {
    DeviceMemory memory;  // inputs, then targets
    Event copied;
  };

  Device& device_;
  Stream& stream_;
  std::int64_t tokens_;
  std::array<Buffer, 2> buffers_;
  std::size_t next_ = 0;
};

}  // namespace dstrain
