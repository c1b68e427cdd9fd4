#include "engine/optim/optimizer_kinds.h"

#include "engine/optim/sign_exchange.h"

namespace dstrain {

Moments moments_of(const OptimizerConfig& config) {
  using enum MomentExtent;
  switch (config.kind) {
    case OptimizerKind::kAdamW:
    case OptimizerKind::kAdam:
    case OptimizerKind::kLamb:
      return {kAll, kAll, "exp_avg", "exp_avg_sq"};
    case OptimizerKind::kSgd:
      return config.momentum == 0.0 ? Moments{} : Moments{kAll, kNone, "momentum_buffer", ""};
    case OptimizerKind::kAdagrad:
      return {kNone, kAll, "", "sum"};
    case OptimizerKind::kRmsprop:
      if (config.centered) return {kAll, kAll, "grad_avg", "square_avg"};
      return config.momentum == 0.0 ? Moments{kNone, kAll, "", "square_avg"}
                                    : Moments{kAll, kAll, "momentum_buffer", "square_avg"};
    case OptimizerKind::kLion:
      return {kAll, kNone, "exp_avg", ""};
    case OptimizerKind::kMuon:
      return {kAll, kNotHiddenMatrices, "exp_avg", "exp_avg_sq"};
    case OptimizerKind::kOneBitAdam:
      return {kAll, kAll, "exp_avg", "exp_avg_sq"};
    case OptimizerKind::kZeroOneAdam:
      return {kAll, kAll, "exp_avg", "exp_avg_sq", "momentum_accumulator"};
    case OptimizerKind::kOneBitLamb:
      return {kAll, kAll, "exp_avg", "exp_avg_sq", "exp_avg_sq_fresh"};
  }
  return {};
}

OptimizerScratch declare_optimizer(const OptimizerConfig& config,
                                   const ShardMap& shards,
                                   DType compute,
                                   Blueprint& blueprint) {
  switch (config.kind) {
    case OptimizerKind::kAdamW:
    case OptimizerKind::kAdam:
    case OptimizerKind::kSgd:
    case OptimizerKind::kAdagrad:
    case OptimizerKind::kRmsprop:
    case OptimizerKind::kLion:
      return {};
    case OptimizerKind::kLamb:
      return declare_lamb(blueprint);
    case OptimizerKind::kMuon:
      return declare_muon(shards, compute, blueprint);
    case OptimizerKind::kOneBitAdam:
    case OptimizerKind::kZeroOneAdam:
      return SignExchange::declare(blueprint);
    case OptimizerKind::kOneBitLamb:
      return declare_one_bit_lamb(blueprint);
  }
  return {};
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerParts& parts) {
  switch (parts.config.kind) {
    case OptimizerKind::kAdamW:
    case OptimizerKind::kAdam:
    case OptimizerKind::kSgd:
    case OptimizerKind::kAdagrad:
    case OptimizerKind::kRmsprop:
    case OptimizerKind::kLion:
      return make_elementwise(parts);
    case OptimizerKind::kLamb:
      return make_lamb(parts);
    case OptimizerKind::kMuon:
      return make_muon(parts);
    case OptimizerKind::kOneBitAdam:
      return make_one_bit_adam(parts);
    case OptimizerKind::kZeroOneAdam:
      return make_zero_one_adam(parts);
    case OptimizerKind::kOneBitLamb:
      return make_one_bit_lamb(parts);
  }
  return nullptr;
}

}  // namespace dstrain
