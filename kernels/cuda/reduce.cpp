// Sums in a fixed order.
#include "kernels/cuda/device/reduce.h"

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/scratch.h"
#include "kernels/cuda/typed.h"
#include "kernels/elementwise_operands.h"
#include "kernels/math/bit_sums.h"

namespace dstrain {
namespace {

template <typename T>
void sum_into(
    const Launch& to, const ConstTensor& values, cuda::Of of, const Tensor& total, Write write) {
  const std::int64_t n = values.numel();
  expect_sum(values, DTypeOf<T>::value, total);
  const Scratch partials(cuda::sum_blocks(n) * size_of(DType::kF64), to.stream);
  cuda::sum_elements(to, pointer<T>(values), n, of, partials.as<double>(), pointer<double>(total),
                     write == Write::kAdd);
}

}  // namespace

void CudaOps::sum(ConstTensor values, Tensor total, Write write, Stream& stream) {
  sum_into<float>(on(stream), values, cuda::Of::kValues, total, write);
}

void CudaOps::sum_of_squares(ConstTensor values, Tensor total, Write write, Stream& stream) {
  with_dtype(values.dtype(), [&]<typename T>() {
    sum_into<T>(on(stream), values, cuda::Of::kSquares, total, write);
  });
}

void CudaOps::bit_sums(ConstTensor values, DType as, Tensor sums_4, Stream& stream) {
  const std::int64_t n = values.numel();
  expect_bit_sums(values, as, sums_4);
  const Launch to = on(stream);
  const Scratch partials(cuda::sum_blocks(n) * static_cast<std::int64_t>(sizeof(BitSums)),
                         to.stream);
  auto* const totals = static_cast<std::uint64_t*>(sums_4.data());
  with_dtype(as, [&]<typename T>() {
    if (values.dtype() == as) {
      cuda::sum_bits<T, T>(to, pointer<T>(values), n, partials.as<std::uint64_t>(), totals);
    } else {
      cuda::sum_bits<float, T>(to, pointer<float>(values), n, partials.as<std::uint64_t>(), totals);
    }
  });
}

}  // namespace dstrain
