// Loops between compute dtypes and 8-bit floats.
#include "kernels/core/f8.h"
#include "kernels/cpu/vector/parts.h"
#include "kernels/cpu/vector/vec.h"

namespace dstrain::DSTRAIN_ISA {
namespace {

using VecByte = std::uint8_t __attribute__((vector_size(kLanes)));
using MemoryByte [[gnu::aligned(1), gnu::may_alias]] = VecByte;

/// Positive floats are ordered as their bits are, with NaN after infinity.
template <typename T>
[[gnu::flatten]] float largest_magnitude(const T* x, std::int64_t n) {
  VecBits largest{};
  for_each_vec(n, [&](std::int64_t i, auto width) {
    const VecBits magnitude = reinterpret_cast<VecBits>(load(x + i, width)) & 0x7fffffffU;
    largest = magnitude > largest ? magnitude : largest;
  });
  std::uint32_t most = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    most = largest[lane] > most ? largest[lane] : most;
  }
  return __builtin_bit_cast(float, most);
}

DSTRAIN_INLINE void store_bytes(std::uint8_t* p, VecBits codes, Whole /*width*/) {
  *reinterpret_cast<MemoryByte*>(p) = __builtin_convertvector(codes, VecByte);
}
DSTRAIN_INLINE void store_bytes(std::uint8_t* p, VecBits codes, Partial width) {
  for (int lane = 0; lane < width.count; ++lane) {
    p[lane] = static_cast<std::uint8_t>(codes[lane]);
  }
}

template <typename F8, typename T>
[[gnu::flatten]] void quantize(const T* x, float factor, std::uint8_t* q, std::int64_t n) {
  for_each_vec(n, [=](std::int64_t i, auto width) {
    store_bytes(q + i, f8_bits<F8, VecBits>(load(x + i, width), factor), width);
  });
}

template <typename F8>
[[gnu::flatten]] void dequantize(const std::uint8_t* q, float scale, BF16* y, std::int64_t n) {
  for_each_vec(n, [=](std::int64_t i, auto width) {
    VecBits codes{};
    if constexpr (sizeof(width) == sizeof(Whole)) {
      codes = __builtin_convertvector(*reinterpret_cast<const MemoryByte*>(q + i), VecBits);
    } else {
      for (int lane = 0; lane < width.count; ++lane) {
        codes[lane] = q[i + lane];
      }
    }
    store(y + i, scale * f8_values<F8, Vec>(codes), width);
  });
}

template <typename T>
void fill(TypedLoops<T>* loops) {
  loops->largest_magnitude = largest_magnitude<T>;
  loops->to_f8e4m3 = quantize<F8E4M3, T>;
  loops->to_f8e5m2 = quantize<F8E5M2, T>;
}

}  // namespace

void fill_fp8(VectorLoops* loops) {
  fill(&loops->f32);
  fill(&loops->bf16);
  fill(&loops->f16);
  loops->from_f8e4m3 = dequantize<F8E4M3>;
  loops->from_f8e5m2 = dequantize<F8E5M2>;
}

}  // namespace dstrain::DSTRAIN_ISA
