// cuda_check(cudaMalloc(…), "cudaMalloc of the gradients"): a status of the CUDA runtime becomes an
// exception that names the call, at the line that received it.
#pragma once

#include <stdexcept>
#include <string_view>

#include <cuda_runtime_api.h>

namespace dstrain {

/// A call of CUDA or of one of its libraries failed. After most errors of a kernel the process can
/// no longer use the device.
class CudaError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

[[noreturn]] void fail_cuda(cudaError_t status, std::string_view call);

inline void cuda_check(cudaError_t status, std::string_view call) {
  if (status != cudaSuccess) [[unlikely]] {
    fail_cuda(status, call);
  }
}

}  // namespace dstrain
