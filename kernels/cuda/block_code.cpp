// Floats coded block by block as small integers (kernels/math/block_code.h).
#include "kernels/cuda/device/block_code.h"

#include "kernels/block_code_operands.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/typed.h"

namespace dstrain {

void CudaOps::encode_blocks(const BlockCode& code,
                            const CodedParts& parts,
                            ConstTensor values,
                            Tensor coded,
                            Stream& stream) {
  const std::int64_t elements = expect_block_code(code, parts, values, coded);
  with_dtype(values.dtype(), [&]<typename T>() {
    cuda::encode_blocks(on(stream), code, parts, elements, pointer<T>(values),
                        pointer<std::uint8_t>(coded));
  });
}

void CudaOps::decode_blocks(const BlockCode& code,
                            const CodedParts& parts,
                            ConstTensor coded,
                            Tensor values,
                            Write write,
                            Stream& stream) {
  const std::int64_t elements = expect_block_code(code, parts, values, coded);
  with_dtype(values.dtype(), [&]<typename T>() {
    cuda::decode_blocks(on(stream), code, parts, elements, pointer<std::uint8_t>(coded),
                        pointer<T>(values), write == Write::kAdd);
  });
}

}  // namespace dstrain
