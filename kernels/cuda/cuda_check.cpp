#include "kernels/cuda/cuda_check.h"

#include <fmt/format.h>

namespace dstrain {

void fail_cuda(cudaError_t status, std::string_view call) {
  (void)cudaGetLastError();  // what is reported here is not to be reported again by a later launch
  throw CudaError(fmt::format("{} failed: {} ({})", call, cudaGetErrorString(status),
                              cudaGetErrorName(status)));
}

}  // namespace dstrain
