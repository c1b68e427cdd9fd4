// Loops between floats and their signs (kernels/math/sign_code.h).
#include "kernels/math/sign_code.h"

#include "kernels/cpu/vector/lane_bits.h"
#include "kernels/cpu/vector/parts.h"
#include "kernels/cpu/vector/vec.h"

namespace dstrain::DSTRAIN_ISA {
namespace {

constexpr int kBytes = kLanes < 8 ? 1 : kLanes / 8;  // of signs that a step takes
constexpr int kStep = 8 * kBytes;

/// The first lane of each eight, or of the four that there are, becomes the last.
constexpr int kReversed = kLanes < 8 ? kLanes - 1 : 7;

/// The lanes below zero, the first in the highest bit of each byte, or of the half that there is.
DSTRAIN_INLINE unsigned below_zero(const float* x) {
  return lane_bits(exchanged<kReversed>(load(x)) < 0.0F);
}

[[gnu::flatten]] void encode_signs(float* x, float scale, std::uint8_t* signs, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    unsigned negative = below_zero(x + i);
    if constexpr (kLanes < kStep) {
      negative = negative << kLanes | below_zero(x + i + kLanes);
    }
    for (int byte = 0; byte < kBytes; ++byte) {
      signs[i / 8 + byte] = static_cast<std::uint8_t>(~negative >> (8 * byte));
    }
    for (int k = 0; k < kStep; k += kLanes) {
      const Vec value = load(x + i + k);
      store(x + i + k, value - (value < 0.0F ? broadcast(-scale) : broadcast(scale)));
    }
  }
  for (; i < n; i += 8) {
    const int left = n - i < 8 ? static_cast<int>(n - i) : 8;
    float eight[8] = {};
    for (int k = 0; k < left; ++k) {
      eight[k] = x[i + k];
      x[i + k] -= one_bit_value(one_bit_sign(eight[k]), scale);
    }
    signs[i / 8] = static_cast<std::uint8_t>(pack_signs(eight) & (0xff00U >> left));
  }
}

/// The bit of a sign that each lane has, among those of the bytes that a vector takes, the first
/// byte in the lowest bits.
template <int... kLane>
DSTRAIN_INLINE constexpr VecBits sign_bits(std::integer_sequence<int, kLane...> /*all lanes*/) {
  return VecBits{(0x80U >> (kLane % 8) << (kLane / 8 * 8))...};
}

DSTRAIN_INLINE unsigned signs_at(const std::uint8_t* signs, std::int64_t i, int lanes) {
  unsigned bits = signs[i / 8];
  if constexpr (kLanes < 8) {
    return bits << (i % 8);
  }
  for (int byte = 1; byte < kBytes; ++byte) {
    bits |= lanes > 8 * byte ? static_cast<unsigned>(signs[i / 8 + byte]) << (8 * byte) : 0U;
  }
  return bits;
}
DSTRAIN_INLINE int lanes_of(Whole /*width*/) {
  return kLanes;
}
DSTRAIN_INLINE int lanes_of(Partial width) {
  return width.count;
}

[[gnu::flatten]] void sum_signs(const SignRows& rows) {
  const VecBits bit_of_lane = sign_bits(std::make_integer_sequence<int, kLanes>{});
  for_each_vec(rows.n, [&](std::int64_t i, auto width) {
    Vec sum{};
    for (std::int64_t row = 0; row < rows.count; ++row) {
      const std::int64_t at = row * rows.stride;
      const float scale = *reinterpret_cast<const float*>(rows.scales + at);
      const VecBits bits =
          (VecBits{} + signs_at(rows.signs + at, i, lanes_of(width))) & bit_of_lane;
      sum += bits != 0U ? broadcast(scale) : broadcast(-scale);
    }
    sum *= rows.factor;
    store(rows.y + i, rows.adds ? load(rows.y + i, width) + sum : sum, width);
  });
}

}  // namespace

void fill_sign_code(VectorLoops* loops) {
  loops->encode_signs = encode_signs;
  loops->sum_signs = sum_signs;
}

}  // namespace dstrain::DSTRAIN_ISA
