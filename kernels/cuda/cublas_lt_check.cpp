#include <fmt/format.h>

#include "kernels/cuda/cublas_lt.h"
#include "kernels/cuda/cuda_check.h"

namespace dstrain {

void CublasLt::check(cublasStatus_t status, std::string_view call) const {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw CudaError(fmt::format("{} failed: {} (status {})", call, status_string(status),
                                static_cast<int>(status)));
  }
}

}  // namespace dstrain
