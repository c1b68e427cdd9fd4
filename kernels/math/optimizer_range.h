// The arguments of the optimizers' loops: floats of formats known at run time. Plain structs
// without initialisers: this is compiled for every instruction set and for GPUs.
#pragma once

#include <cstdint>

#include "kernels/math/optimizer_steps.h"

namespace dstrain {

enum class FloatFormat : std::uint8_t { kF32, kBF16, kF16 };

/// Floats of a format known at run time. The loops check the format once a vector, which costs
/// little compared with the memory traffic and saves a copy of each loop for every combination.
struct Floats {
  void* data;  ///< nullptr: not there
  FloatFormat format;
};
struct ConstFloats {
  const void* data;
  FloatFormat format;
};

struct OptimizerRange {
  ConstFloats gradient;
  Floats master;  ///< bf16: rounded stochastically, as the moments
  Floats first_moment;
  Floats second_moment;
  Floats third_moment;  ///< f32
  Floats parameters;    ///< copy of the new master, rounded to nearest
  RoundingNoise noise;
};

/// Sums over the elements of a range.
struct LambSquares {
  double parameter;
  double direction;
};

struct OneBitLambSums {
  double update;         ///< squares
  double first_term;     ///< squares of the update without the decay
  double largest_ratio;  ///< of deviations, frozen to fresh; NaN if one is
};

}  // namespace dstrain
