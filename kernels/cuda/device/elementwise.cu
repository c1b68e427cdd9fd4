// Flat ranges: addition, conversion, scaling.
#include "kernels/cuda/device/elementwise.cuh"
#include "kernels/cuda/device/elementwise.h"
#include "kernels/math/soft_cap.h"

namespace dstrain::cuda {
namespace {

template <typename T>
struct Add {
  const T* a;
  const T* b;
  T* y;

  template <int kWidth>
  __device__ void at(std::int64_t i) const {
    float left[kWidth];
    float right[kWidth];
    load(a + i, left);
    load(b + i, right);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      left[k] += right[k];
    }
    store(y + i, left);
  }
};

template <typename From, typename To>
struct Convert {
  const From* x;
  To* y;

  template <int kWidth>
  __device__ void at(std::int64_t i) const {
    float values[kWidth];
    load(x + i, values);
    store(y + i, values);
  }
};

template <typename From, typename To>
struct AddScaled {
  const From* x;
  Factor factor;
  To* y;
  bool adds;

  template <int kWidth>
  __device__ void at(std::int64_t i) const {
    const float scale = factor.squares == nullptr
                            ? factor.known
                            : 1.0F / (static_cast<float>(sqrt(*factor.squares)) + factor.epsilon);
    float values[kWidth];
    load(x + i, values);
    if (adds) {
      float sums[kWidth];
      load(y + i, sums);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        values[k] = sums[k] + scale * values[k];
      }
    } else {
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        values[k] *= scale;
      }
    }
    store(y + i, values);
  }
};

template <typename T>
struct SoftCap {
  T* x;
  float cap;

  template <int kWidth>
  __device__ void at(std::int64_t i) const {
    float values[kWidth];
    load(x + i, values);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      values[k] = dstrain::soft_cap(values[k], cap);
    }
    store(x + i, values);
  }
};

}  // namespace

template <typename T>
void add(const Launch& to, const T* a, const T* b, T* y, std::int64_t n) {
  launch_elementwise("add", to, n, all_aligned(a, b, y), Add<T>{a, b, y});
}

template <typename From, typename To>
void convert(const Launch& to, const From* x, To* y, std::int64_t n) {
  launch_elementwise("cast", to, n, all_aligned(x, y), Convert<From, To>{x, y});
}

template <typename From, typename To>
void add_scaled(
    const Launch& to, const From* x, const Factor& factor, To* y, bool adds, std::int64_t n) {
  launch_elementwise("add_scaled", to, n, all_aligned(x, y),
                     AddScaled<From, To>{x, factor, y, adds});
}

template <typename T>
void soft_cap(const Launch& to, T* x, float cap, std::int64_t n) {
  launch_elementwise("soft_cap", to, n, all_aligned(x), SoftCap<T>{x, cap});
}

template void add(const Launch&, const float*, const float*, float*, std::int64_t);
template void add(const Launch&, const BF16*, const BF16*, BF16*, std::int64_t);
template void add(const Launch&, const F16*, const F16*, F16*, std::int64_t);

template void convert(const Launch&, const float*, BF16*, std::int64_t);
template void convert(const Launch&, const float*, F16*, std::int64_t);
template void convert(const Launch&, const BF16*, float*, std::int64_t);
template void convert(const Launch&, const BF16*, F16*, std::int64_t);
template void convert(const Launch&, const F16*, float*, std::int64_t);
template void convert(const Launch&, const F16*, BF16*, std::int64_t);

template void add_scaled(const Launch&, const float*, const Factor&, float*, bool, std::int64_t);
template void add_scaled(const Launch&, const float*, const Factor&, BF16*, bool, std::int64_t);
template void add_scaled(const Launch&, const float*, const Factor&, F16*, bool, std::int64_t);
template void add_scaled(const Launch&, const BF16*, const Factor&, float*, bool, std::int64_t);
template void add_scaled(const Launch&, const BF16*, const Factor&, BF16*, bool, std::int64_t);
template void add_scaled(const Launch&, const BF16*, const Factor&, F16*, bool, std::int64_t);
template void add_scaled(const Launch&, const F16*, const Factor&, float*, bool, std::int64_t);
template void add_scaled(const Launch&, const F16*, const Factor&, BF16*, bool, std::int64_t);
template void add_scaled(const Launch&, const F16*, const Factor&, F16*, bool, std::int64_t);

template void soft_cap(const Launch&, float*, float, std::int64_t);
template void soft_cap(const Launch&, BF16*, float, std::int64_t);
template void soft_cap(const Launch&, F16*, float, std::int64_t);

}  // namespace dstrain::cuda
