// Floats of the three compute dtypes on the device: conversion, and packs of neighbours that move
// in accesses of 16 bytes.
#pragma once

#include <cstdint>

#include "kernels/core/bf16.h"
#include "kernels/core/f16.h"
#include "kernels/cuda/device/language.cuh"
#include "kernels/math/vector_math.h"

namespace dstrain {

/// Done by a product, which keeps every NaN: those that a GPU computes have all payload bits set,
/// which the addition to the exponent would turn into a number.
template <>
DSTRAIN_HD float times_power_of_two<float>(float p, float shifted) {
  const std::uint32_t power = (__builtin_bit_cast(std::uint32_t, shifted) << 23) + 0x3f800000U;
  return p * __builtin_bit_cast(float, power);
}

__device__ inline float widen(float x) {
  return x;
}
__device__ inline float widen(BF16 x) {
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(x.bits) << 16);
}
__device__ inline float widen(F16 x) {
  return __half2float(__builtin_bit_cast(__half, x.bits));
}

/// Rounds to nearest, ties to even.
template <typename T>
__device__ T narrow(float x);
template <>
__device__ inline float narrow<float>(float x) {
  return x;
}
template <>
__device__ inline BF16 narrow<BF16>(float x) {
  return BF16{__builtin_bit_cast(std::uint16_t, __float2bfloat16_rn(x))};
}
template <>
__device__ inline F16 narrow<F16>(float x) {
  return F16{__builtin_bit_cast(std::uint16_t, __float2half_rn(x))};
}

/// kWidth neighbours; aligned so that they move in accesses of 16 bytes where they are that long.
template <typename T, int kWidth>
struct alignas(sizeof(T) * kWidth < 16 ? sizeof(T) * kWidth : 16) Pack {
  T values[kWidth];
};

template <int kWidth, typename T>
__device__ void load(const T* from, float (&to)[kWidth]) {
  const auto pack = *reinterpret_cast<const Pack<T, kWidth>*>(from);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    to[i] = widen(pack.values[i]);
  }
}

template <int kWidth, typename T>
__device__ void store(T* to, const float (&from)[kWidth]) {
  Pack<T, kWidth> pack;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    pack.values[i] = narrow<T>(from[i]);
  }
  *reinterpret_cast<Pack<T, kWidth>*>(to) = pack;
}

/// Whether packs of 16 bytes may begin at all of these addresses.
template <typename... Pointers>
bool all_aligned(const Pointers*... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
}

/// Neighbours that one thread takes: two accesses of f32, one of the others.
constexpr int kPackWidth = 8;

}  // namespace dstrain
