// Stochastic rounding to bf16: up or down with probabilities that make the rounding right on
// average, so that updates smaller than half a unit in the last place are not all lost.
// Random bits are a pure function of (seed, stream, element), whatever range, slice or thread asks.
#pragma once

#include <cstdint>

#include "kernels/math/host_device.h"
#include "kernels/math/philox_rounds.h"
#include "kernels/math/vector_math.h"

namespace dstrain {

/// The upper half of the result is the bf16 number, the lower half is zero. Only the lower 16 bits
/// of `random` count. They are added below bf16's last bit and what remains there is cut off: away
/// from zero with the probability of the part cut off. Infinities and NaN stay what they are.
template <typename F>
DSTRAIN_HD typename FloatTraits<F>::Bits stochastic_bf16(F value,
                                                         typename FloatTraits<F>::Bits random) {
  using Bits = typename FloatTraits<F>::Bits;
  const Bits bits = __builtin_bit_cast(Bits, value);
  const Bits finite = bits + (random & 0xffffU);
  // A NaN whose payload is all in the lower half must not become an infinity.
  const Bits special = value != value ? bits | 0x400000U : bits;
  return ((bits & 0x7f800000U) == 0x7f800000U ? special : finite) & 0xffff0000U;
}

}  // namespace dstrain
