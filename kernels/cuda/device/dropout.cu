// Dropout of rows of the residual stream, and noise. A thread takes a column and the four rows that
// share a counter's words; a warp's threads take neighbouring columns. The floor is the bytes of x
// and y; ten rounds of Philox for four elements stay below it in f32, and near it in 16 bits.
#include "kernels/cuda/device/dropout.h"
#include "kernels/cuda/device/elementwise.cuh"

namespace dstrain::cuda {
namespace {

/// What happens to an element whose word is drawn.
struct Drop {
  __device__ float of(float x, std::uint32_t word, const SampleDropout& dropout) const {
    return x * (word < dropout.threshold ? 0.0F : dropout.factor);
  }
  __device__ bool draws(const std::int32_t* /*first_sample*/) const { return true; }
};
struct AddNoise {
  float magnitude;
  __device__ float of(float x, std::uint32_t word, const SampleDropout& /*dropout*/) const {
    return x + noise_of(word, magnitude);
  }
  __device__ bool draws(const std::int32_t* first_sample) const { return is_drawn(first_sample); }
};

/// Blocks: columns, then counters of all samples that the rows lie in.
template <typename Change, typename T>
__global__ void change_kernel(DropoutRows<T> rows,
                              std::int64_t counters_per_sample,
                              Change change) {
  const std::int64_t column = std::int64_t{blockIdx.y} * blockDim.x + threadIdx.x;
  if (column >= rows.width || !change.draws(rows.dropout.first_sample)) {
    return;
  }
  const std::int64_t sample =
      rows.first_row / rows.sequence + std::int64_t{blockIdx.x} / counters_per_sample;
  const std::int64_t counter = rows.first_position / kDropoutAlong * kDropoutCounters +
                               std::int64_t{blockIdx.x} % counters_per_sample;
  const SampleDropout dropout =
      sample_dropout(rows.dropout.key, rows.dropout.probability, rows.dropout.first_sample, sample);
  std::uint32_t words[4];
  dropout_words(dropout, 0, static_cast<std::uint32_t>(counter),
                static_cast<std::uint32_t>(rows.first_column + column), words);
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    const std::int64_t position = counter / kDropoutCounters * kDropoutAlong +
                                  dropout_along(static_cast<int>(counter % kDropoutCounters), word);
    const std::int64_t t = position - rows.first_position;
    const std::int64_t row = sample * rows.sequence + t - rows.first_row;
    if (t >= 0 && t < rows.sequence && row >= 0 && row < rows.rows) {
      const std::int64_t at = row * rows.width + column;
      rows.y[at] = narrow<T>(change.of(widen(rows.x[at]), words[word], dropout));
    }
  }
}

template <typename Change, typename T>
void change(const char* name, const Launch& to, const DropoutRows<T>& rows, const Change& how) {
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
  launch(name, change_kernel<Change, T>,
         dim3(static_cast<unsigned>(samples * counters),
              static_cast<unsigned>((rows.width + threads - 1) / threads)),
         dim3(threads), 0, to.stream, rows, counters, how);
}

}  // namespace

template <typename T>
void dropout(const Launch& to, const DropoutRows<T>& rows) {
  change("dropout", to, rows, Drop{});
}

template <typename T>
void add_noise(const Launch& to, const DropoutRows<T>& rows, float magnitude) {
  change("add_noise", to, rows, AddNoise{magnitude});
}

template void dropout(const Launch&, const DropoutRows<float>&);
template void dropout(const Launch&, const DropoutRows<BF16>&);
template void dropout(const Launch&, const DropoutRows<F16>&);
template void add_noise(const Launch&, const DropoutRows<float>&, float);
template void add_noise(const Launch&, const DropoutRows<BF16>&, float);
template void add_noise(const Launch&, const DropoutRows<F16>&, float);

}  // namespace dstrain::cuda
