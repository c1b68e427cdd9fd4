// Dropout of rows: sixteen positions of a sample a task, which share their random words.
#include "kernels/dropout.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/typed.h"

namespace dstrain {

void CpuOps::dropout(const DropoutRows& rows, ConstTensor x_NC, Tensor y_NC, Stream& stream) {
  const auto [num_rows, width] = expect_dropout(rows, x_NC, y_NC);
  stream.run([=, this, num_rows = num_rows, width = width] {
    const std::int64_t first_block = rows.first_position / kDropoutAlong;
    const std::int64_t end_position = rows.first_position + rows.sequence;
    const std::int64_t blocks = (end_position + kDropoutAlong - 1) / kDropoutAlong - first_block;
    const std::int64_t end_row = rows.first_row + num_rows;
    const std::int64_t first_sample = rows.first_row / rows.sequence;
    const std::int64_t samples = (end_row - 1) / rows.sequence + 1 - first_sample;
    with_loops(loops_, x_NC.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
      parallel_for(
          threads_, num_rows == 0 ? 0 : samples * blocks, [&](std::int64_t task, int /*worker*/) {
            const std::int64_t sample = first_sample + task / blocks;
            const std::int64_t block = first_block + task % blocks;
            // The following are among the batch's rows.
            const std::int64_t of_sample = sample * rows.sequence;
            const std::int64_t origin = of_sample + block * kDropoutAlong - rows.first_position;
            const std::int64_t begin = std::max({origin, of_sample, rows.first_row});
            const std::int64_t end =
                std::min({origin + kDropoutAlong, of_sample + rows.sequence, end_row});
            if (begin >= end) {
              return;
            }
            const std::int64_t at = (begin - rows.first_row) * width;
            loops.dropout({.dropout = sample_dropout(rows.dropout, sample),
                           .block = static_cast<std::uint32_t>(block),
                           .begin = static_cast<int>(begin - origin),
                           .end = static_cast<int>(end - origin),
                           .width = width,
                           .x = pointer<T>(x_NC) + at,
                           .y = pointer<T>(y_NC) + at});
          });
    });
  });
}

}  // namespace dstrain
