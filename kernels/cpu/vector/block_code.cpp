// Loops between compute dtypes and the codes of a block (kernels/math/block_code.h).
#include "kernels/math/block_code.h"

#include "kernels/cpu/vector/parts.h"
#include "kernels/cpu/vector/vec.h"

namespace dstrain::DSTRAIN_ISA {
namespace {

using VecCode = std::uint8_t __attribute__((vector_size(kLanes)));
using MemoryCode [[gnu::aligned(1), gnu::may_alias]] = VecCode;

DSTRAIN_INLINE void store_codes(std::uint8_t* p, VecBits codes, Whole /*width*/) {
  *reinterpret_cast<MemoryCode*>(p) = __builtin_convertvector(codes, VecCode);
}
DSTRAIN_INLINE void store_codes(std::uint8_t* p, VecBits codes, Partial width) {
  for (int lane = 0; lane < width.count; ++lane) {
    p[lane] = static_cast<std::uint8_t>(codes[lane]);
  }
}
DSTRAIN_INLINE VecBits load_codes(const std::uint8_t* p, Whole /*width*/) {
  return __builtin_convertvector(*reinterpret_cast<const MemoryCode*>(p), VecBits);
}
DSTRAIN_INLINE VecBits load_codes(const std::uint8_t* p, Partial width) {
  VecBits codes{};
  for (int lane = 0; lane < width.count; ++lane) {
    codes[lane] = p[lane];
  }
  return codes;
}

/// The nearest integers to x · inverse, as the low bits of each element.
DSTRAIN_INLINE VecBits integers(Vec x, float inverse) {
  return reinterpret_cast<VecBits>(x * inverse + kToInteger);
}
/// The integer of `kBits` bits that an element ends with.
template <int kBits>
DSTRAIN_INLINE Vec value_of(VecBits code) {
  constexpr std::uint32_t kSign = 1U << (kBits - 1);
  const VecBits shifted = (code & (2 * kSign - 1)) ^ kSign;
  return __builtin_convertvector(reinterpret_cast<LaneIndex>(shifted), Vec) -
         static_cast<float>(kSign);
}

template <typename T>
[[gnu::flatten]] void encode_8_bits(const T* x,
                                    float inverse,
                                    std::uint8_t* codes,
                                    std::int64_t n) {
  for_each_vec(n, [=](std::int64_t i, auto width) {
    store_codes(codes + i, integers(load(x + i, width), inverse) & 0xffU, width);
  });
}

template <typename T>
[[gnu::flatten]] void encode_4_bits(
    const T* low, const T* high, float inverse, std::uint8_t* codes, std::int64_t n) {
  for_each_vec(n, [=](std::int64_t i, auto width) {
    const VecBits first = integers(load(low + i, width), inverse) & 0xfU;
    const VecBits second = integers(load(high + i, width), inverse) & 0xfU;
    store_codes(codes + i, first | (second << 4), width);
  });
}

template <int kBits, typename T>
DSTRAIN_INLINE void decode(
    const std::uint8_t* codes, int shift, float scale, T* y, bool adds, std::int64_t n) {
  for_each_vec(n, [=](std::int64_t i, auto width) {
    const Vec value = value_of<kBits>(load_codes(codes + i, width) >> shift) * scale;
    store(y + i, adds ? load(y + i, width) + value : value, width);
  });
}

template <typename T>
[[gnu::flatten]] void decode_8_bits(
    const std::uint8_t* codes, float scale, T* y, bool adds, std::int64_t n) {
  decode<8>(codes, 0, scale, y, adds, n);
}

template <typename T>
[[gnu::flatten]] void decode_4_bits(
    const std::uint8_t* codes, int shift, float scale, T* y, bool adds, std::int64_t n) {
  decode<4>(codes, shift, scale, y, adds, n);
}

template <typename T>
void fill(TypedLoops<T>* loops) {
  loops->encode_8_bits = encode_8_bits<T>;
  loops->encode_4_bits = encode_4_bits<T>;
  loops->decode_8_bits = decode_8_bits<T>;
  loops->decode_4_bits = decode_4_bits<T>;
}

}  // namespace

void fill_block_code(VectorLoops* loops) {
  fill(&loops->f32);
  fill(&loops->bf16);
  fill(&loops->f16);
}

}  // namespace dstrain::DSTRAIN_ISA
