// FaultBox: how a kernel refuses what only it sees, such as a token outside the vocabulary. The
// host cannot look at the numbers without waiting for the GPU; so a kernel looks at them, writes
// what is wrong here, and the operation's other kernels leave everything untouched. The next time
// that the host waits for a stream, it throws. So do threads of the host that watch over work which
// no kernel can judge: a collective whose other end does not come.
#pragma once

#include <atomic>
#include <exception>
#include <mutex>

#include <cuda_runtime_api.h>

#include "kernels/cuda/device/fault.h"

namespace dstrain {

class FaultBox {
 public:
  /// Makes one for the current device.
  FaultBox();
  FaultBox(const FaultBox&) = delete;
  FaultBox& operator=(const FaultBox&) = delete;
  ~FaultBox();

  /// The memory that kernels write to.
  [[nodiscard]] FaultPointers pointers() const { return {raised_, seen_}; }
  /// Throws InternalError once where a kernel has found a fault; throws what `fail` was given.
  void rethrow();

  /// Makes every wait from now on throw `failure`: the contents of the device can no longer be
  /// trusted. The first one stays. May be called from any thread; calls nothing of CUDA.
  void fail(std::exception_ptr failure) noexcept;
  /// The exception that `fail` was given, or nullptr.
  [[nodiscard]] std::exception_ptr failure() const;

 private:
  mutable std::mutex mutex_;  // of failure_
  std::exception_ptr failure_;
  std::atomic<bool> failed_{false};
  int* raised_ = nullptr;  // on the device: not zero from the first fault on
  Fault* seen_ = nullptr;  // on the host, where the GPU can write: read without a call of CUDA
};

}  // namespace dstrain
