// Matrices in 8 bits a number (kernels/math/int8_code.h).
#include "kernels/cuda/device/int8_code.h"

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/typed.h"
#include "kernels/int8_operands.h"

namespace dstrain {

void CudaOps::decode_int8(const Int8Code& code, ConstTensor coded, Tensor values, Stream& stream) {
  expect_int8(code, coded, values);
  with_dtype(values.dtype(), [&]<typename T>() {
    cuda::decode_int8(on(stream), code, pointer<std::uint8_t>(coded), pointer<T>(values));
  });
}

}  // namespace dstrain
