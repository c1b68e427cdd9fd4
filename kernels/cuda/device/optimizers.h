// The optimizers: one pass over a flat range.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/launch.h"
#include "kernels/math/optimizer_range.h"

namespace dstrain::cuda {

/// Step is any that an ElementwiseStep may hold; `name` is what an error calls it.
template <typename Step>
void update(const Launch& to,
            const char* name,
            const Step& step,
            const OptimizerRange& range,
            std::int64_t n);

/// The number of doubles of scratch that lamb_moments needs.
std::int64_t lamb_partials(std::int64_t n);
void lamb_moments(const Launch& to,
                  const LambStep& step,
                  const OptimizerRange& range,
                  std::int64_t n,
                  double* partials,
                  double* squares_2);
void lamb_apply(const Launch& to,
                const LambStep& step,
                const OptimizerRange& range,
                std::int64_t n,
                const double* squares_2);
void remember_trust_ratio(const Launch& to,
                          const LambStep& step,
                          double beta,
                          const double* squares_2,
                          double* coefficients_2);
/// The number of doubles of scratch that one_bit_lamb_moments needs.
std::int64_t one_bit_lamb_partials(std::int64_t n);
void one_bit_lamb_moments(const Launch& to,
                          const OneBitLambStep& step,
                          const OptimizerRange& range,
                          std::int64_t n,
                          double* partials,
                          double* sums_3);
void one_bit_lamb_apply(const Launch& to,
                        const OneBitLambStep& step,
                        const OptimizerRange& range,
                        std::int64_t n,
                        const double* sums_3,
                        double* coefficients_2);
void muon_momentum(const Launch& to,
                   const MuonStep& step,
                   ConstFloats gradient,
                   float* buffer,
                   Floats update,
                   std::int64_t n);

}  // namespace dstrain::cuda
