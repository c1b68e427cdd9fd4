// Products in 8 bits. A processor has no such products: the operands are widened to bf16, which
// holds every 8-bit float times a power of two, so the numbers that are multiplied are the same as
// on a GPU.
#include <algorithm>
#include <array>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/typed.h"
#include "kernels/fp8_operands.h"

namespace dstrain {

// Tasks of 64 rows, which go through a tile on their way to the transposed copy.
void CpuOps::quantize(const Quantization& quantization, Stream& stream) {
  const auto [rows, columns] = as_matrix(quantization.x_RC);
  const Tensor q = quantization.q_RC;
  const Tensor transposed = quantization.q_CR;
  const bool converts = !q.empty() || !transposed.empty();
  const DType dtype = expect_quantization(quantization);
  stream.run([=, this, rows = rows, columns = columns] {
    constexpr std::int64_t kTile = 64;
    const float factor = converts ? 1.0F / *pointer<float>(quantization.scale) : 1.0F;
    const std::int64_t tasks = (rows + kTile - 1) / kTile;
    // The maxima of each task, and the one from before.
    const auto maxima = scratch_.lease((tasks + 1) * size_of(DType::kF32));
    with_loops(loops_, quantization.x_RC.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
      const auto convert = dtype == DType::kF8E4M3 ? loops.to_f8e4m3 : loops.to_f8e5m2;
      const T* const x = pointer<T>(quantization.x_RC);
      parallel_for(threads_, tasks, [&](std::int64_t task, int /*worker*/) {
        const std::int64_t begin = task * kTile;
        const std::int64_t count = std::min(kTile, rows - begin);
        maxima.as<float>()[task] = loops.largest_magnitude(x + begin * columns, count * columns);
        if (!q.empty()) {
          convert(x + begin * columns, factor, pointer<std::uint8_t>(q) + begin * columns,
                  count * columns);
        }
        std::array<std::uint8_t, kTile * kTile> tile;
        for (std::int64_t c = 0; !transposed.empty() && c < columns; c += kTile) {
          const std::int64_t width = std::min(kTile, columns - c);
          for (std::int64_t r = 0; r < count; ++r) {
            convert(x + (begin + r) * columns + c, factor, tile.data() + r * kTile, width);
          }
          for (std::int64_t k = 0; k < width; ++k) {
            std::uint8_t* const to = pointer<std::uint8_t>(transposed) + (c + k) * rows + begin;
            for (std::int64_t r = 0; r < count; ++r) {
              to[r] = tile[static_cast<std::size_t>(r * kTile + k)];
            }
          }
        }
      });
    });
    float* const amax = pointer<float>(quantization.amax);
    maxima.as<float>()[tasks] = *amax;
    *amax = loops_.f32.largest_magnitude(maxima.as<float>(), tasks + 1);
  });
}

void CpuOps::scaled_product(const ScaledTensor& a_MK,
                            const ScaledTensor& b_NK,
                            ConstTensor bias_N,
                            Tensor c_MN,
                            Write write,
                            Stream& stream) {
  expect_scaled_product(a_MK, b_NK, bias_N, c_MN, write);
  stream.run([=, this] {
    constexpr std::int64_t kPiece = 1 << 15;
    const auto widened = [&](const ScaledTensor& operand, BF16* to) {
      const auto convert =
          operand.q.dtype() == DType::kF8E4M3 ? loops_.from_f8e4m3 : loops_.from_f8e5m2;
      const float scale = *pointer<float>(operand.scale);
      parallel_pieces(
          threads_, operand.q.numel(), kPiece, [&](std::int64_t begin, std::int64_t end) {
            convert(pointer<std::uint8_t>(operand.q) + begin, scale, to + begin, end - begin);
          });
      return ConstTensor(to, DType::kBF16, operand.q.shape());
    };
    const auto a = scratch_.lease(a_MK.q.numel() * size_of(DType::kBF16));
    const auto b = scratch_.lease(b_NK.q.numel() * size_of(DType::kBF16));
    run({.a = widened(a_MK, a.as<BF16>()),
         .b = widened(b_NK, b.as<BF16>()),
         .bias = bias_N,
         .c = c_MN,
         .b_transposed = true,
         .write = write});
  });
}

}  // namespace dstrain
