// Matrices in 8 bits a number (kernels/math/int8_code.h). A task is a row. Floor: the bytes of the
// values. A row's codes become f32 in a buffer of its own, which is scaled and rounded once.
#include "kernels/math/int8_code.h"

#include <algorithm>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/typed.h"
#include "kernels/int8_operands.h"

namespace dstrain {
namespace {

constexpr std::int64_t kBlock = 256;  // numbers at a time

void scale_to(
    const TypedLoops<float>& loops, const float* x, float scale, float* y, std::int64_t n) {
  loops.scale_to_f32(x, scale, y, false, n);
}
void scale_to(
    const TypedLoops<float>& loops, const float* x, float scale, BF16* y, std::int64_t n) {
  loops.scale_to_bf16(x, scale, y, false, n);
}
void scale_to(const TypedLoops<float>& loops, const float* x, float scale, F16* y, std::int64_t n) {
  loops.scale_to_f16(x, scale, y, false, n);
}

}  // namespace

void CpuOps::decode_int8(const Int8Code& code, ConstTensor coded, Tensor values, Stream& stream) {
  expect_int8(code, coded, values);
  stream.run([=, this, threads = threads_on(stream)] {
    const auto* const numbers = static_cast<const std::int8_t*>(coded.data());
    const auto* const largest =
        reinterpret_cast<const float*>(pointer<std::uint8_t>(coded) + code.largest_at());
    with_loops(loops_, values.dtype(), [&]<typename T>(const TypedLoops<T>& /*loops*/) {
      parallel_for(threads, code.rows, [&](std::int64_t row, int /*worker*/) {
        const std::int8_t* const q = numbers + row * code.columns;
        T* const y = pointer<T>(values) + row * code.columns;
        const float scale = Int8Code::scale_of(largest[row]);
        for (std::int64_t begin = 0; begin < code.columns; begin += kBlock) {
          const std::int64_t count = std::min(kBlock, code.columns - begin);
          float wide[kBlock];
          for (std::int64_t i = 0; i < count; ++i) {
            wide[i] = static_cast<float>(q[begin + i]);
          }
          scale_to(loops_.f32, wide, scale, y + begin, count);
        }
      });
    });
  });
}

}  // namespace dstrain
