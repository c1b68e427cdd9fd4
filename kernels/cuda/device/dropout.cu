// Dropout of rows of the residual stream. A thread takes a column and the four rows that share a
// counter's words; a warp's threads take neighbouring columns. The floor is the bytes of x and y;
// ten rounds of Philox for four elements stay below it in f32, and near it in 16 bits.
#include "kernels/cuda/device/dropout.h"
#include "kernels/cuda/device/elementwise.cuh"

namespace dstrain::cuda {
namespace {

/// Blocks: columns, then counters of all samples that the rows lie in.
template <typename T>
__global__ void dropout_kernel(DropoutRows<T> rows, std::int64_t counters_per_sample) {
  const std::int64_t column = std::int64_t{blockIdx.y} * blockDim.x + threadIdx.x;
  if (column >= rows.width) {
    return;
  }
  const std::int64_t sample =
      rows.first_row / rows.sequence + std::int64_t{blockIdx.x} / counters_per_sample;
  const std::int64_t counter = rows.first_position / kDropoutAlong * kDropoutCounters +
                               std::int64_t{blockIdx.x} % counters_per_sample;
  const SampleDropout dropout = rows.dropout.of_sample(sample);
  std::uint32_t words[4];
  dropout_words(dropout, 0, static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(column),
                words);
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    const std::int64_t position = counter / kDropoutCounters * kDropoutAlong +
                                  dropout_along(static_cast<int>(counter % kDropoutCounters), word);
    const std::int64_t t = position - rows.first_position;
    const std::int64_t row = sample * rows.sequence + t - rows.first_row;
    if (t >= 0 && t < rows.sequence && row >= 0 && row < rows.rows) {
      const std::int64_t at = row * rows.width + column;
      const float factor = words[word] < dropout.threshold ? 0.0F : dropout.factor;
      rows.y[at] = narrow<T>(widen(rows.x[at]) * factor);
    }
  }
}

}  // namespace

template <typename T>
void dropout(const Launch& to, const DropoutRows<T>& rows) {
  if (rows.rows == 0 || rows.width == 0) {
    return;
  }
  const std::int64_t end_position = rows.first_position + rows.sequence;
  const std::int64_t counters =
      ((end_position + kDropoutAlong - 1) / kDropoutAlong - rows.first_position / kDropoutAlong) *
      kDropoutCounters;
  const std::int64_t samples =
      (rows.first_row + rows.rows - 1) / rows.sequence + 1 - rows.first_row / rows.sequence;
  const unsigned threads = threads_for_row(rows.width, 1, 256);
  launch("dropout", dropout_kernel<T>,
         dim3(static_cast<unsigned>(samples * counters),
              static_cast<unsigned>((rows.width + threads - 1) / threads)),
         dim3(threads), 0, to.stream, rows, counters);
}

template void dropout(const Launch&, const DropoutRows<float>&);
template void dropout(const Launch&, const DropoutRows<BF16>&);
template void dropout(const Launch&, const DropoutRows<F16>&);

}  // namespace dstrain::cuda
