// Dropout of rows of T (float, BF16 or F16), and the part of it that attention's kernels are given.
#pragma once

#include <cstdint>

#include "kernels/core/bf16.h"
#include "kernels/core/f16.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/math/dropout.h"

namespace dstrain::cuda {

struct DropoutInputs {
  std::uint64_t key = 0;
  float probability = 0.0F;                    ///< 0: there is none
  const std::int32_t* first_sample = nullptr;  ///< two words in the device's memory

  /// For kernels. Reads nothing where there is no dropout.
  [[nodiscard]] DSTRAIN_HD SampleDropout of_sample(std::int64_t index) const {
    if (probability == 0.0F) {
      return {key, 0, 0, 1.0F};
    }
    return sample_dropout(key, probability, first_sample, index);
  }
};

template <typename T>
struct DropoutRows {
  DropoutInputs dropout;
  std::int64_t rows;
  std::int64_t width;
  std::int64_t sequence;
  std::int64_t first_row;
  std::int64_t first_position;
  std::int64_t first_column;
  const T* x;
  T* y;  ///< may be x
};
template <typename T>
void dropout(const Launch& to, const DropoutRows<T>& rows);
/// y = x + noise.
template <typename T>
void add_noise(const Launch& to, const DropoutRows<T>& rows, float magnitude);

}  // namespace dstrain::cuda
