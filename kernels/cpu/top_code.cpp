// The largest numbers of each block (kernels/math/top_code.h). A task is a block.
#include <algorithm>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/typed.h"
#include "kernels/top_code_operands.h"

namespace dstrain {

void CpuOps::encode_largest(const TopCode& code, Tensor values, Tensor coded, Stream& stream) {
  const std::int64_t n = expect_top_code(code, 1, values, coded);
  stream.run([=, this, threads = threads_on(stream)] {
    auto* const bytes = pointer<std::uint8_t>(coded);
    auto* const sent = reinterpret_cast<float*>(bytes);
    auto* const places = reinterpret_cast<std::uint16_t*>(bytes + code.place_offset(n));
    parallel_for(threads, code.blocks(n), [&](std::int64_t block, int /*worker*/) {
      const std::int64_t first = block * TopCode::kBlock;
      const std::int64_t size = std::min(TopCode::kBlock, n - first);
      loops_.take_largest(pointer<float>(values) + first, size, code.sent(size),
                          sent + block * code.keep, places + block * code.keep);
    });
    std::fill(bytes + code.used_bytes(n), bytes + code.bytes(n), std::uint8_t{0});
  });
}

void CpuOps::sum_largest(const TopCode& code,
                         std::int64_t messages,
                         ConstTensor coded,
                         float factor,
                         Tensor values,
                         Stream& stream) {
  const std::int64_t n = expect_top_code(code, messages, values, coded);
  stream.run([=, this, threads = threads_on(stream)] {
    const auto* const bytes = pointer<std::uint8_t>(coded);
    parallel_for(threads, code.blocks(n), [&](std::int64_t block, int /*worker*/) {
      const std::int64_t first = block * TopCode::kBlock;
      const std::int64_t size = std::min(TopCode::kBlock, n - first);
      float* const y = pointer<float>(values) + first;
      std::fill(y, y + size, 0.0F);
      for (std::int64_t index = 0; index < messages; ++index) {
        const std::uint8_t* const message = bytes + index * code.bytes(n);
        const auto* const sent = reinterpret_cast<const float*>(message) + block * code.keep;
        const auto* const places =
            reinterpret_cast<const std::uint16_t*>(message + code.place_offset(n)) +
            block * code.keep;
        for (std::int64_t entry = 0; entry < code.sent(size); ++entry) {
          y[places[entry]] += sent[entry];
        }
      }
      loops_.f32.scale_to_f32(y, factor, y, false, size);
    });
  });
}

}  // namespace dstrain
