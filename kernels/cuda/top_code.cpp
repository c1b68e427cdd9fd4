// The largest numbers of each block (kernels/math/top_code.h).
#include "kernels/cuda/device/top_code.h"

#include "kernels/cuda/cuda_ops.h"
#include "kernels/top_code_operands.h"

namespace dstrain {

void CudaOps::encode_largest(const TopCode& code, Tensor values, Tensor coded, Stream& stream) {
  const std::int64_t n = expect_top_code(code, 1, values, coded);
  cuda::encode_largest(on(stream), code, n, pointer<float>(values), pointer<std::uint8_t>(coded));
}

void CudaOps::sum_largest(const TopCode& code,
                          std::int64_t messages,
                          ConstTensor coded,
                          float factor,
                          Tensor values,
                          Stream& stream) {
  const std::int64_t n = expect_top_code(code, messages, values, coded);
  cuda::sum_largest(on(stream), code, messages, n, pointer<std::uint8_t>(coded), factor,
                    pointer<float>(values));
}

}  // namespace dstrain
