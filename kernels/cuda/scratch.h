// Scratch: device memory for one operation, in stream order: taken when the stream gets there,
// given back when the stream has passed the operation. It comes from CUDA's pool, which keeps what
// it got from the driver (cuda_device.cpp), so that a training step asks the driver for nothing.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "kernels/cuda/cuda_check.h"

namespace dstrain {

class Scratch {
 public:
  Scratch(std::int64_t bytes, cudaStream_t stream) : stream_(stream) {
    if (bytes > 0) {
      cuda_check(cudaMallocAsync(&data_, static_cast<std::size_t>(bytes), stream),
                 "cudaMallocAsync of an operation's scratch");
    }
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    if (data_ != nullptr) {
      (void)cudaFreeAsync(data_, stream_);
    }
  }
  template <typename T>
  [[nodiscard]] T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  cudaStream_t stream_;
  void* data_ = nullptr;
};

}  // namespace dstrain
