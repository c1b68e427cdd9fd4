// Activations, gated or not, and other operations row by row: biases and rotation. One block a row,
// packs of neighbours side by side in threads; floor: the bytes read and written.
#include "kernels/cuda/device/elementwise.cuh"
#include "kernels/cuda/device/elementwise.h"
#include "kernels/math/activation.h"
#include "kernels/math/gated.h"

namespace dstrain::cuda {
namespace {

template <typename Activation, typename T>
struct Forward {
  const T* x;
  T* y;

  template <int kWidth>
  __device__ void at(std::int64_t i) const {
    float values[kWidth];
    load(x + i, values);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      values[k] = Activation::value(values[k]);
    }
    store(y + i, values);
  }
};

template <typename Activation, typename T>
struct Backward {
  const T* x;
  const T* dy;
  T* dx;

  template <int kWidth>
  __device__ void at(std::int64_t i) const {
    float values[kWidth];
    float slopes[kWidth];
    load(x + i, values);
    load(dy + i, slopes);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      slopes[k] *= Activation::derivative(values[k]);
    }
    store(dx + i, slopes);
  }
};

template <int kWidth, typename Gate, typename T>
__global__ void gated_forward_kernel(Gate gated, const T* gate_up, T* y, std::int64_t width) {
  const T* const gates = gate_up + std::int64_t{blockIdx.x} * 2 * width;
  T* const out = y + std::int64_t{blockIdx.x} * width;
  for (std::int64_t c = threadIdx.x * kWidth; c < width; c += blockDim.x * kWidth) {
    float gate[kWidth];
    float up[kWidth];
    load(gates + c, gate);
    load(gates + width + c, up);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      gate[k] = gated.value(gate[k], up[k]);
    }
    store(out + c, gate);
  }
}

/// d_gate_up may be gate_up: a thread reads what it overwrites before.
template <int kWidth, typename Gate, typename T>
__global__ void gated_backward_kernel(
    Gate gated, const T* gate_up, const T* dy, T* d_gate_up, std::int64_t width) {
  const T* const gates = gate_up + std::int64_t{blockIdx.x} * 2 * width;
  const T* const slopes = dy + std::int64_t{blockIdx.x} * width;
  T* const out = d_gate_up + std::int64_t{blockIdx.x} * 2 * width;
  for (std::int64_t c = threadIdx.x * kWidth; c < width; c += blockDim.x * kWidth) {
    float gate[kWidth];
    float up[kWidth];
    float slope[kWidth];
    load(gates + c, gate);
    load(gates + width + c, up);
    load(slopes + c, slope);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      const auto of_both = gated.gradient(gate[k], up[k], slope[k]);
      gate[k] = of_both.gate;
      up[k] = of_both.up;
    }
    store(out + c, gate);
    store(out + width + c, up);
  }
}

template <int kWidth, typename Y, typename T>
__global__ void add_to_rows_kernel(Y* y, const T* bias, std::int64_t width) {
  Y* const row = y + std::int64_t{blockIdx.x} * width;
  for (std::int64_t c = threadIdx.x * kWidth; c < width; c += blockDim.x * kWidth) {
    float values[kWidth];
    float added[kWidth];
    load(row + c, values);
    load(bias + c, added);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      values[k] += added[k];
    }
    store(row + c, values);
  }
}

/// A thread takes kWidth neighbouring pairs, whose halves lie rope.pairs apart.
template <int kWidth, typename T>
__global__ void rope_kernel(RopeRows<T> rope) {
  const int half = rope.pairs;
  const int packs = half / kWidth;  // of a head
  const std::int64_t position = rope.positions == nullptr ? std::int64_t{blockIdx.x} % rope.sequence
                                                          : rope.positions[blockIdx.x];
  const float* const cosines = rope.cosine + position * half;
  const float* const sines = rope.sine + position * half;
  T* const row = rope.qkv + std::int64_t{blockIdx.x} * rope.row_stride;
  for (int at = static_cast<int>(threadIdx.x); at < rope.heads * packs;
       at += static_cast<int>(blockDim.x)) {
    const int i = at % packs * kWidth;
    T* const first = row + std::int64_t{at / packs} * rope.head_dim + i;
    T* const second = first + half;
    float a[kWidth];
    float b[kWidth];
    float cosine[kWidth];
    float sine[kWidth];
    load(first, a);
    load(second, b);
    load(cosines + i, cosine);
    load(sines + i, sine);
    float rotated_a[kWidth];
    float rotated_b[kWidth];
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      const float s = sine[k] * rope.direction;
      rotated_a[k] = a[k] * cosine[k] - b[k] * s;
      rotated_b[k] = b[k] * cosine[k] + a[k] * s;
    }
    store(first, rotated_a);
    store(second, rotated_b);
  }
}

constexpr unsigned kMostThreads = 256;

dim3 one_a_row(std::int64_t rows) {
  return dim3(static_cast<unsigned>(rows));
}

}  // namespace

template <typename T>
void activation_forward(const Launch& to, ActivationKind kind, const T* x, T* y, std::int64_t n) {
  visit(kind, [&](auto activation) {
    launch_elementwise("activation_forward", to, n, all_aligned(x, y),
                       Forward<decltype(activation), T>{x, y});
  });
}

template <typename T>
void activation_backward(
    const Launch& to, ActivationKind kind, const T* x, const T* dy, T* dx, std::int64_t n) {
  visit(kind, [&](auto activation) {
    launch_elementwise("activation_backward", to, n, all_aligned(x, dy, dx),
                       Backward<decltype(activation), T>{x, dy, dx});
  });
}

template <typename T>
void gated_forward(const Launch& to,
                   const GatedActivation& activation,
                   const T* gate_up,
                   T* y,
                   std::int64_t rows,
                   std::int64_t width) {
  if (rows == 0 || width == 0) {
    return;
  }
  visit_gated(activation.kind, activation.limit, [&](auto gated) {
    using Gate = decltype(gated);
    if (width % kPackWidth == 0 && all_aligned(gate_up, y)) {
      launch("gated_activation_forward", gated_forward_kernel<kPackWidth, Gate, T>, one_a_row(rows),
             dim3(threads_for_row(width, kPackWidth, kMostThreads)), 0, to.stream, gated, gate_up,
             y, width);
    } else {
      launch("gated_activation_forward", gated_forward_kernel<1, Gate, T>, one_a_row(rows),
             dim3(threads_for_row(width, 1, kMostThreads)), 0, to.stream, gated, gate_up, y, width);
    }
  });
}

template <typename T>
void gated_backward(const Launch& to,
                    const GatedActivation& activation,
                    const T* gate_up,
                    const T* dy,
                    T* d_gate_up,
                    std::int64_t rows,
                    std::int64_t width) {
  if (rows == 0 || width == 0) {
    return;
  }
  visit_gated(activation.kind, activation.limit, [&](auto gated) {
    using Gate = decltype(gated);
    if (width % kPackWidth == 0 && all_aligned(gate_up, dy, d_gate_up)) {
      launch("gated_activation_backward", gated_backward_kernel<kPackWidth, Gate, T>,
             one_a_row(rows), dim3(threads_for_row(width, kPackWidth, kMostThreads)), 0, to.stream,
             gated, gate_up, dy, d_gate_up, width);
    } else {
      launch("gated_activation_backward", gated_backward_kernel<1, Gate, T>, one_a_row(rows),
             dim3(threads_for_row(width, 1, kMostThreads)), 0, to.stream, gated, gate_up, dy,
             d_gate_up, width);
    }
  });
}

template <typename Y, typename T>
void add_to_rows(const Launch& to, Y* y, const T* bias, std::int64_t rows, std::int64_t width) {
  if (rows == 0 || width == 0) {
    return;
  }
  if (width % kPackWidth == 0 && all_aligned(y, bias)) {
    launch("add_bias", add_to_rows_kernel<kPackWidth, Y, T>, one_a_row(rows),
           dim3(threads_for_row(width, kPackWidth, kMostThreads)), 0, to.stream, y, bias, width);
  } else {
    launch("add_bias", add_to_rows_kernel<1, Y, T>, one_a_row(rows),
           dim3(threads_for_row(width, 1, kMostThreads)), 0, to.stream, y, bias, width);
  }
}

template <typename T>
void rope(const Launch& to, const RopeRows<T>& rows) {
  if (rows.rows == 0) {
    return;
  }
  const int half = rows.pairs;
  const std::int64_t pairs = std::int64_t{rows.heads} * half;
  if (half % kPackWidth == 0 && rows.head_dim % kPackWidth == 0 &&
      rows.row_stride % kPackWidth == 0 && all_aligned(rows.qkv, rows.cosine, rows.sine)) {
    launch("rope", rope_kernel<kPackWidth, T>, one_a_row(rows.rows),
           dim3(threads_for_row(pairs, kPackWidth, kMostThreads)), 0, to.stream, rows);
  } else {
    launch("rope", rope_kernel<1, T>, one_a_row(rows.rows),
           dim3(threads_for_row(pairs, 1, kMostThreads)), 0, to.stream, rows);
  }
}

template void activation_forward(const Launch&, ActivationKind, const float*, float*, std::int64_t);
template void activation_forward(const Launch&, ActivationKind, const BF16*, BF16*, std::int64_t);
template void activation_forward(const Launch&, ActivationKind, const F16*, F16*, std::int64_t);
template void activation_backward(
    const Launch&, ActivationKind, const float*, const float*, float*, std::int64_t);
template void activation_backward(
    const Launch&, ActivationKind, const BF16*, const BF16*, BF16*, std::int64_t);
template void activation_backward(
    const Launch&, ActivationKind, const F16*, const F16*, F16*, std::int64_t);
template void gated_forward(
    const Launch&, const GatedActivation&, const float*, float*, std::int64_t, std::int64_t);
template void gated_forward(
    const Launch&, const GatedActivation&, const BF16*, BF16*, std::int64_t, std::int64_t);
template void gated_forward(
    const Launch&, const GatedActivation&, const F16*, F16*, std::int64_t, std::int64_t);
template void gated_backward(const Launch&,
                             const GatedActivation&,
                             const float*,
                             const float*,
                             float*,
                             std::int64_t,
                             std::int64_t);
template void gated_backward(const Launch&,
                             const GatedActivation&,
                             const BF16*,
                             const BF16*,
                             BF16*,
                             std::int64_t,
                             std::int64_t);
template void gated_backward(const Launch&,
                             const GatedActivation&,
                             const F16*,
                             const F16*,
                             F16*,
                             std::int64_t,
                             std::int64_t);
template void add_to_rows(const Launch&, float*, const float*, std::int64_t, std::int64_t);
template void add_to_rows(const Launch&, BF16*, const BF16*, std::int64_t, std::int64_t);
template void add_to_rows(const Launch&, float*, const BF16*, std::int64_t, std::int64_t);
template void add_to_rows(const Launch&, float*, const F16*, std::int64_t, std::int64_t);
template void add_to_rows(const Launch&, F16*, const F16*, std::int64_t, std::int64_t);
template void rope(const Launch&, const RopeRows<float>&);
template void rope(const Launch&, const RopeRows<BF16>&);
template void rope(const Launch&, const RopeRows<F16>&);

}  // namespace dstrain::cuda
