// Floats coded by their signs (kernels/math/sign_code.h).
#include "kernels/cuda/device/sign_code.h"

#include "kernels/cuda/cuda_ops.h"
#include "kernels/sign_code_operands.h"

namespace dstrain {

void CudaOps::encode_signs(
    const SignParts& parts, Tensor values, ConstTensor squares, Tensor coded, Stream& stream) {
  const std::int64_t n = expect_sign_chunks(parts, values, coded);
  expect(squares, "sign code: squares", DType::kF64, 1);
  cuda::encode_signs(on(stream), parts, n, pointer<float>(values), pointer<double>(squares),
                     pointer<std::uint8_t>(coded));
}

void CudaOps::sum_signs(const SignParts& parts,
                        ConstTensor coded,
                        float factor,
                        Tensor values,
                        Write write,
                        Stream& stream) {
  const std::int64_t n = expect_sign_sum(parts, coded, values);
  cuda::sum_signs(on(stream), parts, n, pointer<std::uint8_t>(coded), factor,
                  pointer<float>(values), write == Write::kAdd);
}

void CudaOps::decode_signs(const SignParts& parts,
                           ConstTensor coded,
                           Tensor values,
                           Stream& stream) {
  const std::int64_t n = expect_sign_chunks(parts, values, coded);
  cuda::decode_signs(on(stream), parts, n, pointer<std::uint8_t>(coded), pointer<float>(values));
}

}  // namespace dstrain
