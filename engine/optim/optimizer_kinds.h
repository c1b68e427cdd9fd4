// The optimizers: elementwise.cpp, lamb.cpp, muon.cpp, one_bit_adam.cpp, zero_one_adam.cpp,
// one_bit_lamb.cpp. optimizer_kinds.cpp is where OptimizerConfig::kind chooses among them, for the
// functions that optimizer.h declares.
#pragma once

#include <memory>

#include "engine/optim/optimizer.h"
#include "kernels/math/optimizer_steps.h"

namespace dstrain {

/// Makes one that updates each element on its own: AdamW, Adam, SGD, Adagrad, RMSprop, Lion.
std::unique_ptr<Optimizer> make_elementwise(const OptimizerParts& parts);

std::unique_ptr<Optimizer> make_lamb(const OptimizerParts& parts);
OptimizerScratch declare_lamb(Blueprint& blueprint);

std::unique_ptr<Optimizer> make_muon(const OptimizerParts& parts);
OptimizerScratch declare_muon(const ShardMap& shards, DType compute, Blueprint& blueprint);

std::unique_ptr<Optimizer> make_one_bit_adam(const OptimizerParts& parts);
std::unique_ptr<Optimizer> make_zero_one_adam(const OptimizerParts& parts);
std::unique_ptr<Optimizer> make_one_bit_lamb(const OptimizerParts& parts);
OptimizerScratch declare_one_bit_lamb(Blueprint& blueprint);

/// AdamW's step without its decay, at `learning_rate`; Muon uses it for parameters that are not
/// matrices.
AdamwStep adamw_step(const OptimizerConfig& config,
                     const UpdateParams& params,
                     double learning_rate);

/// 1 - betaᵗ, what Adam's and LAMB's moments are divided by; 1 where the correction is off.
double bias_correction(const OptimizerConfig& config, double beta, std::int64_t update);

}  // namespace dstrain
