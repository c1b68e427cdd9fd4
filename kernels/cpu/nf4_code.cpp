// Matrices in 4 bits a number (kernels/math/nf4_code.h). A task is a row. Floor: the bytes of the
// values. The levels of a block are multiplied and rounded once, and its numbers looked up.
#include "kernels/math/nf4_code.h"

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/typed.h"
#include "kernels/nf4_operands.h"

namespace dstrain {
namespace {

constexpr Levels<256> kDynamicLevels = dynamic_levels();
constexpr std::int64_t kCount = 16;

void levels_of(const TypedLoops<float>& loops, float magnitude, float* levels) {
  loops.scale_to_f32(kNf4Levels.of, magnitude, levels, false, kCount);
}
void levels_of(const TypedLoops<float>& loops, float magnitude, BF16* levels) {
  loops.scale_to_bf16(kNf4Levels.of, magnitude, levels, false, kCount);
}
void levels_of(const TypedLoops<float>& loops, float magnitude, F16* levels) {
  loops.scale_to_f16(kNf4Levels.of, magnitude, levels, false, kCount);
}

}  // namespace

void CpuOps::decode_nf4(const Nf4Code& code, ConstTensor coded, Tensor values, Stream& stream) {
  expect_nf4(code, coded, values);
  stream.run([=, this, threads = threads_on(stream)] {
    const auto* const bytes = pointer<std::uint8_t>(coded);
    const auto* const scales = reinterpret_cast<const float*>(bytes + code.scales_at());
    const float mean = *reinterpret_cast<const float*>(bytes + code.mean_at());
    with_loops(loops_, values.dtype(), [&]<typename T>(const TypedLoops<T>& /*loops*/) {
      parallel_for(threads, code.rows, [&](std::int64_t row, int /*worker*/) {
        for (std::int64_t block = 0; block < code.blocks_in_row(); ++block) {
          const std::int64_t own = row * code.blocks_in_row() + block;
          const float level = kDynamicLevels.of[bytes[code.magnitudes_at() + own]];
          const float scale = scales[code.block_of(row, block) / Nf4Code::kScaleBlock];
          T levels[kCount];
          levels_of(loops_.f32, level * scale + mean, levels);
          const std::uint8_t* const codes = bytes + own * Nf4Code::kBlock / 2;
          T* const y = pointer<T>(values) + own * Nf4Code::kBlock;
          for (std::int64_t i = 0; i < Nf4Code::kBlock / 2; ++i) {
            y[2 * i] = levels[codes[i] >> 4];
            y[2 * i + 1] = levels[codes[i] & 15];
          }
        }
      });
    });
  });
}

}  // namespace dstrain
