// Dropout of rows, and noise: sixteen positions of a sample a task, which share their random words.
#include "kernels/dropout.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/typed.h"

namespace dstrain {
namespace {

void round_to(float value, float* to) {
  *to = value;
}
void round_to(float value, BF16* to) {
  *to = to_bf16(value);
}
void round_to(float value, F16* to) {
  *to = to_f16(value);
}

/// Rows of one sample whose positions are among sixteen neighbours.
struct DrawnRows {
  std::int64_t sample;  ///< of the batch
  std::int64_t block;   ///< position / 16
  std::int64_t first;   ///< among the rows
  int begin;            ///< position - 16 · block of the first
  int end;
};

/// Calls body(DrawnRows) for all of them.
template <typename Body>
void for_each_block(int threads, const DropoutRows& rows, std::int64_t num_rows, const Body& body) {
  const std::int64_t first_block = rows.first_position / kDropoutAlong;
  const std::int64_t end_position = rows.first_position + rows.sequence;
  const std::int64_t blocks = (end_position + kDropoutAlong - 1) / kDropoutAlong - first_block;
  const std::int64_t end_row = rows.first_row + num_rows;
  const std::int64_t first_sample = rows.first_row / rows.sequence;
  const std::int64_t samples = (end_row - 1) / rows.sequence + 1 - first_sample;
  parallel_for(
      threads, num_rows == 0 ? 0 : samples * blocks, [&](std::int64_t task, int /*worker*/) {
        const std::int64_t sample = first_sample + task / blocks;
        const std::int64_t block = first_block + task % blocks;
        // The following are among the batch's rows.
        const std::int64_t of_sample = sample * rows.sequence;
        const std::int64_t origin = of_sample + block * kDropoutAlong - rows.first_position;
        const std::int64_t begin = std::max({origin, of_sample, rows.first_row});
        const std::int64_t end =
            std::min({origin + kDropoutAlong, of_sample + rows.sequence, end_row});
        if (begin >= end) return;
        body(DrawnRows{.sample = sample,
                       .block = block,
                       .first = begin - rows.first_row,
                       .begin = static_cast<int>(begin - origin),
                       .end = static_cast<int>(end - origin)});
      });
}

}  // namespace

void CpuOps::dropout(const DropoutRows& rows, ConstTensor x_NC, Tensor y_NC, Stream& stream) {
  const auto [num_rows, width] = expect_dropout(rows, x_NC, y_NC);
  stream.run([=, this, num_rows = num_rows, width = width] {
    with_loops(loops_, x_NC.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
      for_each_block(threads_, rows, num_rows, [&](const DrawnRows& drawn) {
        loops.dropout({.dropout = sample_dropout(rows.dropout, drawn.sample),
                       .block = static_cast<std::uint32_t>(drawn.block),
                       .begin = drawn.begin,
                       .end = drawn.end,
                       .width = width,
                       .first_column = rows.first_column,
                       .x = pointer<T>(x_NC) + drawn.first * width,
                       .y = pointer<T>(y_NC) + drawn.first * width});
      });
    });
  });
}

// Once a micro-batch, so that it has no loop in vectors.
void CpuOps::add_noise(const NoiseRows& rows, Tensor x_NC, Stream& stream) {
  const auto [num_rows, width] = expect_noise(rows, x_NC);
  stream.run([=, this, num_rows = num_rows, width = width] {
    const DropoutRows& place = rows.place;
    if (!is_drawn(pointer<std::int32_t>(place.dropout.first_sample))) return;
    with_loops(loops_, x_NC.dtype(), [&]<typename T>(const TypedLoops<T>& /*loops*/) {
      for_each_block(threads_, place, num_rows, [&](const DrawnRows& drawn) {
        const SampleDropout sample = sample_dropout(place.dropout, drawn.sample);
        for (std::int64_t c = 0; c < width; ++c) {
          for (int counter = 0; counter < kDropoutCounters; ++counter) {
            std::uint32_t words[4];
            dropout_words(sample, 0,
                          static_cast<std::uint32_t>(drawn.block * kDropoutCounters + counter),
                          static_cast<std::uint32_t>(place.first_column + c), words);
            for (int word = 0; word < 4; ++word) {
              const int along = dropout_along(counter, word);
              if (along < drawn.begin || along >= drawn.end) continue;
              T* const x = pointer<T>(x_NC) + (drawn.first + along - drawn.begin) * width + c;
              round_to(to_float(*x) + noise_of(words[word], rows.magnitude), x);
            }
          }
        }
      });
    });
  });
}

}  // namespace dstrain
