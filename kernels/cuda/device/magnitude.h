// Rows of a weight that have magnitudes of their own. T: float, BF16 or F16.
#pragma once

#include <cstdint>

#include "kernels/core/bf16.h"
#include "kernels/core/f16.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/magnitude_rows.h"

namespace dstrain::cuda {

template <typename T>
struct RowLengths {
  const T* magnitudes;  ///< nullptr: the rows have none
  const float* squares;
};

template <typename T>
struct ForwardColumns {
  const T* x;
  const T* bias;  ///< nullptr: there is none
  T* y;
};
template <typename T>
void magnitude_forward(const Launch& to,
                       const MagnitudeRows& rows,
                       const RowLengths<T>& lengths,
                       const ForwardColumns<T>& columns,
                       bool adds);

template <typename T>
struct BackwardColumns {
  const T* dy;
  const T* x;
  T* dx;
};
/// The number of partial sums of the magnitudes' gradient that magnitude_backward makes.
std::int64_t magnitude_backward_chunks(const MagnitudeRows& rows);
/// partials: [magnitude_backward_chunks()][width]; without magnitudes nothing is written there.
template <typename T>
void magnitude_backward(const Launch& to,
                        const MagnitudeRows& rows,
                        const RowLengths<T>& lengths,
                        const BackwardColumns<T>& columns,
                        float* partials);

template <typename T>
void add_row_products(const Launch& to,
                      const T* a,
                      const float* b,
                      float* sums,
                      std::int64_t rows,
                      std::int64_t width);

}  // namespace dstrain::cuda
