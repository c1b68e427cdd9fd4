// OptimizerLoops: the optimizers' part of the table in loops.h. Each loop passes once over elements
// [begin, end) of an OptimizerRange. Plain structs without initialisers, as there.
#pragma once

#include <cstdint>

#include "kernels/math/adagrad.h"
#include "kernels/math/adamw.h"
#include "kernels/math/lamb.h"
#include "kernels/math/lion.h"
#include "kernels/math/muon.h"
#include "kernels/math/optimizer_range.h"
#include "kernels/math/sgd.h"

namespace dstrain {

struct OptimizerLoops {
  template <typename Step>
  using Loop =
      void (*)(const Step& step, const OptimizerRange& range, std::int64_t begin, std::int64_t end);
  Loop<AdamwFactors> adamw;
  Loop<SgdFactors> sgd;
  Loop<AdagradStep> adagrad;
  Loop<LionFactors> lion;
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
  void (*muon_momentum)(const MuonFactors& step,
                        ConstFloats gradient,
                        float* buffer,
                        Floats update,
                        std::int64_t begin,
                        std::int64_t end);
};

}  // namespace dstrain
