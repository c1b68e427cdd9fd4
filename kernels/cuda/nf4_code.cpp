// Matrices in 4 bits a number (kernels/math/nf4_code.h).
#include "kernels/cuda/device/nf4_code.h"

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/typed.h"
#include "kernels/nf4_operands.h"

namespace dstrain {

void CudaOps::decode_nf4(const Nf4Code& code, ConstTensor coded, Tensor values, Stream& stream) {
  expect_nf4(code, coded, values);
  with_dtype(values.dtype(), [&]<typename T>() {
    cuda::decode_nf4(on(stream), code, pointer<std::uint8_t>(coded), pointer<T>(values));
  });
}

}  // namespace dstrain
