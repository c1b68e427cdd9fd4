// Vec: a register of floats of the instruction set this file is compiled for.
//
// The files of this folder are compiled once per instruction set, in the namespace that
// DSTRAIN_ISA names. An inline function with external linkage (anything of std::) would be kept
// once by the linker, perhaps in its AVX-512 copy, and crash an older processor. So: raw pointers,
// always_inline formulas and names inside the namespace only; of the standard library types,
// no functions.
#pragma once

#ifndef DSTRAIN_ISA
#error "files in kernels/cpu/vector are compiled with DSTRAIN_ISA set (kernels/cpu/CMakeLists.txt)"
#endif
#ifdef __AVX2__
#include <immintrin.h>
#endif

#include <cstdint>
#include <utility>

#include "kernels/core/bf16.h"
#include "kernels/core/f16.h"
#include "kernels/math/vector_math.h"

#define DSTRAIN_INLINE [[gnu::always_inline]] inline

namespace dstrain::DSTRAIN_ISA {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

using Vec = float __attribute__((vector_size(4 * kLanes)));
using VecBits = std::uint32_t __attribute__((vector_size(4 * kLanes)));
using VecPairs = std::uint64_t __attribute__((vector_size(4 * kLanes)));
using VecHalf = std::uint16_t __attribute__((vector_size(2 * kLanes)));
// The same types in memory, where they may begin at any element and alias anything.
using MemoryVec [[gnu::aligned(4), gnu::may_alias]] = Vec;
using MemoryHalf [[gnu::aligned(2), gnu::may_alias]] = VecHalf;

DSTRAIN_INLINE Vec broadcast(float value) {
  return value - Vec{};
}

/// Each element in 32 bits. GCC 12 makes six instructions of the conversion where one does.
DSTRAIN_INLINE VecBits widened(VecHalf half) {
#if defined(__AVX512F__)
  return reinterpret_cast<VecBits>(
      _mm512_maskz_cvtepu16_epi32(0xffff, reinterpret_cast<__m256i>(half)));
#elif defined(__AVX2__)
  return reinterpret_cast<VecBits>(_mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(half)));
#else
  return __builtin_convertvector(half, VecBits);
#endif
}

DSTRAIN_INLINE Vec load(const float* p) {
  return *reinterpret_cast<const MemoryVec*>(p);
}
DSTRAIN_INLINE Vec load(const BF16* p) {
  const VecHalf half = *reinterpret_cast<const MemoryHalf*>(p);
  return reinterpret_cast<Vec>(widened(half) << 16);
}
DSTRAIN_INLINE Vec widen_f16(VecHalf half) {
#if defined(__AVX512F__)
  return reinterpret_cast<Vec>(_mm512_maskz_cvtph_ps(0xffff, reinterpret_cast<__m256i>(half)));
#elif defined(__F16C__)
  return reinterpret_cast<Vec>(_mm256_cvtph_ps(reinterpret_cast<__m128i>(half)));
#else
  return f16_values<Vec>(widened(half));
#endif
}
DSTRAIN_INLINE Vec load(const F16* p) {
  return widen_f16(*reinterpret_cast<const MemoryHalf*>(p));
}

/// As to_bf16(); the processor's own instruction, where there is one, takes denormals as zero.
DSTRAIN_INLINE VecHalf round_to_bf16(Vec value) {
#ifdef __AVX512BF16__
  return reinterpret_cast<VecHalf>(_mm512_cvtneps_pbh(reinterpret_cast<__m512>(value)));
#else
  const VecBits bits = reinterpret_cast<VecBits>(value);
  const VecBits rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const VecBits quiet_nan = (bits >> 16) | 0x40U;
  return __builtin_convertvector(value != value ? quiet_nan : rounded, VecHalf);
#endif
}

/// As to_f16(), whatever the processor's mode for denormals.
DSTRAIN_INLINE VecHalf round_to_f16(Vec value) {
#if defined(__AVX512F__)
  return reinterpret_cast<VecHalf>(_mm512_maskz_cvtps_ph(
      0xffff, reinterpret_cast<__m512>(value), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(__F16C__)
  return reinterpret_cast<VecHalf>(
      _mm256_cvtps_ph(reinterpret_cast<__m256>(value), _MM_FROUND_TO_NEAREST_INT));
#else
  return __builtin_convertvector(f16_bits<VecBits>(value), VecHalf);
#endif
}

DSTRAIN_INLINE void store(float* p, Vec value) {
  *reinterpret_cast<MemoryVec*>(p) = value;
}
DSTRAIN_INLINE void store(BF16* p, Vec value) {
  *reinterpret_cast<MemoryHalf*>(p) = round_to_bf16(value);
}
DSTRAIN_INLINE void store(F16* p, Vec value) {
  *reinterpret_cast<MemoryHalf*>(p) = round_to_f16(value);
}

/// The value as a tensor of type T would hold it.
template <typename T>
DSTRAIN_INLINE Vec rounded_as(Vec value);
template <>
DSTRAIN_INLINE Vec rounded_as<float>(Vec value) {
  return value;
}
template <>
DSTRAIN_INLINE Vec rounded_as<BF16>(Vec value) {
  return reinterpret_cast<Vec>(widened(round_to_bf16(value)) << 16);
}
template <>
DSTRAIN_INLINE Vec rounded_as<F16>(Vec value) {
  return widen_f16(round_to_f16(value));
}

DSTRAIN_INLINE void assign(float* p, float value) {
  *p = value;
}
DSTRAIN_INLINE void assign(BF16* p, float value) {
  *p = to_bf16(value);
}
DSTRAIN_INLINE void assign(F16* p, float value) {
  *p = to_f16(value);
}

using LaneIndex = std::int32_t __attribute__((vector_size(4 * kLanes)));

/// Lane l of the result is lane l xor kStep.
template <int kStep, int... kLane>
DSTRAIN_INLINE Vec exchanged(Vec value, std::integer_sequence<int, kLane...> /*all lanes*/) {
  return __builtin_shufflevector(value, value, (kLane ^ kStep)...);
}
template <int kStep>
DSTRAIN_INLINE Vec exchanged(Vec value) {
  return exchanged<kStep>(value, std::make_integer_sequence<int, kLanes>{});
}

DSTRAIN_INLINE float sum_lanes(Vec value) {
  if constexpr (kLanes >= 16) {
    value += exchanged<8>(value);
  }
  if constexpr (kLanes >= 8) {
    value += exchanged<4>(value);
  }
  value += exchanged<2>(value);
  value += exchanged<1>(value);
  return value[0];
}

DSTRAIN_INLINE float max_lanes(Vec value) {
  float largest = value[0];
  for (int lane = 1; lane < kLanes; ++lane) {
    largest = value[lane] > largest ? value[lane] : largest;
  }
  return largest;
}

/// The part of a vector that a step of a loop covers: all of it, or the first `count` elements.
/// Lanes beyond are read as `fill` and not written.
struct Whole {};
struct Partial {
  int count;
  float fill;
};

template <typename T>
DSTRAIN_INLINE Vec load(const T* p, Whole /*width*/) {
  return load(p);
}
template <typename T>
DSTRAIN_INLINE Vec load(const T* p, Partial width) {
  Vec value = broadcast(width.fill);
  for (int lane = 0; lane < width.count; ++lane) {
    value[lane] = to_float(p[lane]);
  }
  return value;
}
template <typename T>
DSTRAIN_INLINE void store(T* p, Vec value, Whole /*width*/) {
  store(p, value);
}
template <typename T>
DSTRAIN_INLINE void store(T* p, Vec value, Partial width) {
  for (int lane = 0; lane < width.count; ++lane) {
    assign(p + lane, value[lane]);
  }
}
/// Zero in the lanes that a step does not cover, so that a sum over lanes is right.
DSTRAIN_INLINE Vec covered(Vec value, Whole /*width*/) {
  return value;
}
DSTRAIN_INLINE Vec covered(Vec value, Partial width) {
  for (int lane = width.count; lane < kLanes; ++lane) {
    value[lane] = 0.0F;
  }
  return value;
}

/// Calls step(i, width) for i = 0, kLanes, 2·kLanes … until `n` elements are covered.
template <typename Step>
DSTRAIN_INLINE void for_each_vec(std::int64_t n, Step&& step, float fill = 0.0F) {
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    step(i, Whole{});
  }
  if (i < n) {
    step(i, Partial{static_cast<int>(n - i), fill});
  }
}

/// The same with two vectors at a time; the third argument of step is 0 for the first and 1 for the
/// second, so that sums need not wait for each other.
template <typename Step>
DSTRAIN_INLINE void for_each_vec_pair(std::int64_t n, Step&& step) {
  std::int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    step(i, Whole{}, 0);
    step(i + kLanes, Whole{}, 1);
  }
  for_each_vec(n - i, [&](std::int64_t k, auto width) { step(i + k, width, 0); });
}

}  // namespace dstrain::DSTRAIN_ISA

namespace dstrain {

template <>
struct FloatTraits<DSTRAIN_ISA::Vec> {
  using Vec = DSTRAIN_ISA::Vec;
  using Bits = DSTRAIN_ISA::VecBits;

  DSTRAIN_HD static Vec square_root(Vec x) {
#if defined(__AVX512F__)
    // The masked form: GCC 12 takes the plain one's don't-care operand for an uninitialised one.
    return reinterpret_cast<Vec>(_mm512_maskz_sqrt_ps(0xffff, reinterpret_cast<__m512>(x)));
#elif defined(__AVX2__)
    return reinterpret_cast<Vec>(_mm256_sqrt_ps(reinterpret_cast<__m256>(x)));
#else
    for (int lane = 0; lane < DSTRAIN_ISA::kLanes; ++lane) {
      x[lane] = __builtin_sqrtf(x[lane]);
    }
    return x;
#endif
  }
  DSTRAIN_HD static Vec larger(Vec a, Vec b) {
#if defined(__AVX512F__)
    return reinterpret_cast<Vec>(
        _mm512_maskz_max_ps(0xffff, reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b)));
#elif defined(__AVX2__)
    return reinterpret_cast<Vec>(
        _mm256_max_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b)));
#else
    return a > b ? a : b;
#endif
  }
  DSTRAIN_HD static Vec smaller(Vec a, Vec b) {
#if defined(__AVX512F__)
    return reinterpret_cast<Vec>(
        _mm512_maskz_min_ps(0xffff, reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b)));
#elif defined(__AVX2__)
    return reinterpret_cast<Vec>(
        _mm256_min_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b)));
#else
    return a < b ? a : b;
#endif
  }
  DSTRAIN_HD static Vec if_at_most(Vec a, Vec b, Vec x) {
    return a <= b ? x : Vec{};
  }
  /// For finite x that are not denormal; right to 2 units in the last place, or 0 beyond 2¹²⁶.
  DSTRAIN_HD static Vec reciprocal(Vec x) {
#if defined(__AVX512F__)
    // 14 bits, and one step of Newton's method.
    const Vec y = reinterpret_cast<Vec>(_mm512_maskz_rcp14_ps(0xffff, reinterpret_cast<__m512>(x)));
    return y * (2.0F - x * y);
#else
    return 1.0F / x;
#endif
  }
};

}  // namespace dstrain

namespace dstrain::DSTRAIN_ISA {

DSTRAIN_INLINE Vec maximum(Vec a, Vec b) {
  return FloatTraits<Vec>::larger(a, b);
}

}  // namespace dstrain::DSTRAIN_ISA
