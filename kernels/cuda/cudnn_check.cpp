#include <array>

#include <fmt/format.h>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/cudnn.h"

namespace dstrain {

std::string Cudnn::name() const {
  const std::size_t number = version();  // 91900 is 9.19.0
  return fmt::format("cuDNN {}.{}.{}", number / 10000, number / 100 % 100, number % 100);
}

std::string Cudnn::explain(cudnnStatus_t status) const {
  std::array<char, 1024> text{};
  last_error(text.data(), text.size());
  return fmt::format("{}{}{}", error_string(status), text[0] == '\0' ? "" : ": ", text.data());
}

void Cudnn::check(cudnnStatus_t status, std::string_view call) const {
  if (status != CUDNN_STATUS_SUCCESS) [[unlikely]] {
    throw CudaError(fmt::format("{} failed: {}", call, explain(status)));
  }
}

}  // namespace dstrain
