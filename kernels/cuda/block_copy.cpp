// Blocks of elements moved from places to others.
#include "kernels/cuda/device/block_copy.h"

#include "kernels/block_copy_operands.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/typed.h"

namespace dstrain {
namespace {

/// Calls f with a pointer type as wide as an element.
template <typename F>
void with_width(DType dtype, F&& f) {
  switch (size_of(dtype)) {
    case 1:
      return f.template operator()<std::uint8_t>();
    case 2:
      return f.template operator()<std::uint16_t>();
    case 4:
      return f.template operator()<std::uint32_t>();
    default:
      return f.template operator()<std::uint64_t>();
  }
}

}  // namespace

void CudaOps::copy_blocks(
    const BlockCopy& blocks, ConstTensor from, Tensor to, Write write, Stream& stream) {
  if (!expect_block_copy(blocks, from, to, write)) {
    return;
  }
  const BlockCopy copy = in_longest_runs(blocks);
  if (write == Write::kOverwrite) {
    with_width(to.dtype(), [&]<typename T>() {
      cuda::copy_blocks(on(stream), copy, pointer<T>(from), pointer<T>(to));
    });
  } else {
    with_dtype(to.dtype(), [&]<typename T>() {
      cuda::add_blocks(on(stream), copy, pointer<T>(from), pointer<T>(to));
    });
  }
}

}  // namespace dstrain
