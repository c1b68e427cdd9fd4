// OptimizerLoops: the optimizers' part of the table in loops.h. Each loop passes once over elements
// [begin, end) of an OptimizerRange. Plain structs without initialisers, as there.
#pragma once

#include <cstdint>

#include "kernels/math/adagrad.h"
#include "kernels/math/adamw.h"
#include "kernels/math/lamb.h"
#include "kernels/math/lion.h"
#include "kernels/math/muon.h"
#include "kernels/math/sgd.h"
#include "kernels/math/stochastic_rounding.h"

namespace dstrain {

enum class FloatFormat : std::uint8_t { kF32, kBF16, kF16 };

/// Floats of a format known at run time. The loops look at it once a vector, which costs little
/// beside the memory traffic and saves a copy of each loop for every combination.
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
  Floats parameters;  ///< copy of the new master, rounded to nearest
  RoundingNoise noise;
};

/// Sums over the elements of a range.
struct LambSquares {
  double parameter;
  double direction;
};

struct OptimizerLoops {
  template <typename Step>
  using Loop =
      void (*)(const Step& step, const OptimizerRange& range, std::int64_t begin, std::int64_t end);
  Loop<AdamwFactors> adamw;
  Loop<SgdFactors> sgd;
  Loop<AdagradStep> adagrad;
  Loop<LionStep> lion;
  /// Moments; the sums are those of the old parameters and the direction. All but the gradient f32.
  LambSquares (*lamb_moments)(const LambFactors& step,
                              const OptimizerRange& range,
                              std::int64_t begin,
                              std::int64_t end);
  void (*lamb_apply)(const LambFactors& step,
                     float trust_ratio,
                     const OptimizerRange& range,
                     std::int64_t begin,
                     std::int64_t end);
  void (*muon_momentum)(const MuonStep& step,
                        ConstFloats gradient,
                        float* buffer,
                        Floats update,
                        std::int64_t begin,
                        std::int64_t end);
};

}  // namespace dstrain
