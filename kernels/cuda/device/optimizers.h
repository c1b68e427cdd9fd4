// The optimizers: one pass over a flat range.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/launch.h"
#include "kernels/math/adagrad.h"
#include "kernels/math/adamw.h"
#include "kernels/math/lamb.h"
#include "kernels/math/lion.h"
#include "kernels/math/muon.h"
#include "kernels/math/optimizer_range.h"
#include "kernels/math/sgd.h"

namespace dstrain::cuda {

void adamw(const Launch& to, const AdamwStep& step, const OptimizerRange& range, std::int64_t n);
void sgd(const Launch& to, const SgdStep& step, const OptimizerRange& range, std::int64_t n);
void adagrad(const Launch& to,
             const AdagradStep& step,
             const OptimizerRange& range,
             std::int64_t n);
void lion(const Launch& to, const LionStep& step, const OptimizerRange& range, std::int64_t n);

/// Doubles of scratch that lamb_moments wants.
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
void muon_momentum(const Launch& to,
                   const MuonStep& step,
                   ConstFloats gradient,
                   float* buffer,
                   Floats update,
                   std::int64_t n);

}  // namespace dstrain::cuda
