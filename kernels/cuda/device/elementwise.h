// Flat ranges and rows: additions, conversions, activations, rotation. T, From, To: float, BF16 or
// F16. Outputs may be the very inputs where kernels/ops.h says so.
#pragma once

#include <cstdint>

#include "kernels/core/bf16.h"
#include "kernels/core/f16.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/op_kinds.h"

namespace dstrain::cuda {

template <typename T>
void add(const Launch& to, const T* a, const T* b, T* y, std::int64_t n);

template <typename From, typename To>
void convert(const Launch& to, const From* x, To* y, std::int64_t n);

/// A factor known to the host, or 1 / (sqrt(*squares) + epsilon), which only the device knows.
struct Factor {
  float known = 1.0F;
  const double* squares = nullptr;
  float epsilon = 0.0F;
};
template <typename From, typename To>
void add_scaled(
    const Launch& to, const From* x, const Factor& factor, To* y, bool adds, std::int64_t n);

/// x = cap · tanh(x / cap).
template <typename T>
void soft_cap(const Launch& to, T* x, float cap, std::int64_t n);

/// Y is T or float.
template <typename Y, typename T>
void add_to_rows(const Launch& to, Y* y, const T* bias, std::int64_t rows, std::int64_t width);

template <typename T>
void activation_forward(const Launch& to, ActivationKind kind, const T* x, T* y, std::int64_t n);
template <typename T>
void activation_backward(
    const Launch& to, ActivationKind kind, const T* x, const T* dy, T* dx, std::int64_t n);
template <typename T>
void gated_forward(const Launch& to,
                   const GatedActivation& activation,
                   const T* gate_up,
                   T* y,
                   std::int64_t rows,
                   std::int64_t width);
template <typename T>
void gated_backward(const Launch& to,
                    const GatedActivation& activation,
                    const T* gate_up,
                    const T* dy,
                    T* d_gate_up,
                    std::int64_t rows,
                    std::int64_t width);

template <typename T>
struct RopeRows {
  T* qkv;
  const float* cosine;  ///< [sequence][pairs]
  const float* sine;
  std::int64_t rows;
  std::int64_t sequence;
  const std::int32_t* positions;  ///< of each row; nullptr: 0 … sequence - 1, in turn
  std::int64_t row_stride;
  int heads;  ///< query and key heads, which lie side by side
  int head_dim;
  int pairs;        ///< of each head, of its first 2 · pairs numbers
  float direction;  ///< 1 forward, -1 backward
};
template <typename T>
void rope(const Launch& to, const RopeRows<T>& rows);

}  // namespace dstrain::cuda
