// OptimizerLoops: the optimizers' part of the table in loops.h. Each loop passes once over elements
// [begin, end) of an OptimizerRange. Plain structs without initialisers, as there.
#pragma once

#include <cstdint>

#include "kernels/math/optimizer_range.h"

namespace dstrain {

struct AdamwFactors;  // kernels/math
struct SgdFactors;
struct RmspropFactors;
struct LionFactors;
struct OneBitAdamFactors;
struct LocalFactors;
struct SyncFactors;
struct LambFactors;
struct OneBitLambFactors;
struct MuonFactors;

/// The loop of an optimizer that updates each element alone (elementwise_optimizers.h).
template <typename Factors>
struct UpdateLoop {
  using Loop = void (*)(const Factors& factors,
                        const OptimizerRange& range,
                        std::int64_t begin,
                        std::int64_t end);
  Loop update;
};
template <typename... Factors>
struct UpdateLoops : UpdateLoop<Factors>... {};

struct OptimizerLoops {
  UpdateLoops<AdamwFactors,
              SgdFactors,
              AdagradStep,
              RmspropFactors,
              LionFactors,
              OneBitAdamFactors,
              LocalFactors,
              SyncFactors>
      updates;
  template <typename Factors>
  [[nodiscard]] typename UpdateLoop<Factors>::Loop update_with(const Factors& /*factors*/) const {
    return static_cast<const UpdateLoop<Factors>&>(updates).update;
  }
  /// Updates the moments; the sums are those of the old parameters and the direction. All but the
  /// gradient are f32.
  LambSquares (*lamb_moments)(const LambFactors& step,
                              const OptimizerRange& range,
                              std::int64_t begin,
                              std::int64_t end);
  void (*lamb_apply)(const LambFactors& step,
                     float trust_ratio,
                     const OptimizerRange& range,
                     std::int64_t begin,
                     std::int64_t end);
  /// Updates first and third moment; the sums are those of the old parameters. All but the gradient
  /// are f32.
  OneBitLambSums (*one_bit_lamb_moments)(const OneBitLambFactors& step,
                                         const OptimizerRange& range,
                                         std::int64_t begin,
                                         std::int64_t end);
  void (*one_bit_lamb_apply)(const OneBitLambFactors& step,
                             float step_size,
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
