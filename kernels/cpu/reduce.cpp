// Sums in an order that does not depend on the number of threads: fixed blocks, then the blocks
// in order.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/operation_work.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/typed.h"
#include "kernels/elementwise_operands.h"

namespace dstrain {

void CpuOps::sum(ConstTensor values, Tensor total, Write write, Stream& stream) {
  sum_blocks<float>(loops_.sum, values, total, write, stream);
}

void CpuOps::sum_of_squares(ConstTensor values, Tensor total, Write write, Stream& stream) {
  with_loops(loops_, values.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
    sum_blocks<T>(loops.sum_of_squares, values, total, write, stream);
  });
}

template <typename T>
void CpuOps::sum_blocks(
    BlockSum<T> block_sum, ConstTensor values, Tensor total, Write write, Stream& stream) {
  const std::int64_t n = values.numel();
  expect_sum(values, DTypeOf<T>::value, total);
  stream.run([=, this] {
    note_moved(values);
    constexpr std::int64_t kBlock = 1 << 16;
    const std::int64_t blocks = (n + kBlock - 1) / kBlock;
    const auto sums = scratch_.lease(blocks * size_of(DType::kF64));
    parallel_pieces(threads_, n, kBlock, [&](std::int64_t begin, std::int64_t end) {
      sums.as<double>()[begin / kBlock] = block_sum(pointer<T>(values) + begin, end - begin);
    });
    double& result = *pointer<double>(total);
    double added = 0.0;
    for (std::int64_t block = 0; block < blocks; ++block) {
      added += sums.as<double>()[block];
    }
    result = write == Write::kAdd ? result + added : added;
  });
}

void CpuOps::bit_sums(ConstTensor values, DType as, Tensor sums_4, Stream& stream) {
  const std::int64_t n = values.numel();
  expect_bit_sums(values, as, sums_4);
  with_loops(loops_, as, [&]<typename T>(const TypedLoops<T>& loops) {
    const bool casts = values.dtype() != as;
    stream.run([=, this] {
      constexpr std::int64_t kBlock = 1 << 16;
      const std::int64_t blocks = (n + kBlock - 1) / kBlock;
      const auto parts =
          scratch_.lease(blocks * static_cast<std::int64_t>(sizeof(BitSums)));  // trivial
      parallel_pieces(threads_, n, kBlock, [&](std::int64_t begin, std::int64_t end) {
        parts.as<BitSums>()[begin / kBlock] =
            casts ? loops.bit_sums_of_cast(pointer<float>(values) + begin, end - begin)
                  : loops.bit_sums(pointer<T>(values) + begin, end - begin);
      });
      BitSums total;
      for (std::int64_t block = 0; block < blocks; ++block) {
        total.add(parts.as<BitSums>()[block], block * kBlock);
      }
      std::memcpy(sums_4.data(), &total, sizeof total);
    });
  });
}

void CpuOps::add_partials(const float* partials,
                          std::int64_t blocks,
                          std::int64_t stride,
                          std::int64_t width,
                          Write write,
                          float* total) {
  constexpr std::int64_t kColumns = 1024;
  parallel_pieces(threads_, width, kColumns, [=, this](std::int64_t begin, std::int64_t end) {
    if (write == Write::kOverwrite) {
      std::fill(total + begin, total + end, 0.0F);
    }
    for (std::int64_t block = 0; block < blocks; ++block) {
      loops_.f32.accumulate(partials + block * stride + begin, total + begin, end - begin);
    }
  });
}

}  // namespace dstrain
