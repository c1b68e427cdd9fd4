#include "engine/optim/optimizer.h"

#include "engine/optim/optimizer_kinds.h"
#include "kernels/core/check.h"

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
    case OptimizerKind::kLion:
      return {kAll, kNone, "exp_avg", ""};
    case OptimizerKind::kMuon:
      return {kAll, kNotHiddenMatrices, "exp_avg", "exp_avg_sq"};
  }
  return {};
}

OptimizerScratch declare_optimizer(const OptimizerConfig& /*config*/,
                                   const ShardMap& /*shards*/,
                                   DType /*compute*/,
                                   Blueprint& /*blueprint*/) {
  return {};
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerParts& parts) {
  check(parts.config.kind == OptimizerKind::kAdamW, "only AdamW is there");
  return make_adamw(parts);
}

}  // namespace dstrain
