// The optimizers that update each element on its own, so that any rank can update any range, in one
// pass over each run of parameters that decay alike and have one rate:
//   AdamW     Loshchilov & Hutter 2019, algorithm 2
//   Adam      Kingma & Ba 2015 with L2 decay, DeepSpeed's "Adam" with adam_w_mode false
//   SGD       with momentum, as torch.optim.SGD has it
//   Adagrad   Duchi et al. 2011, as torch.optim.Adagrad has it
//   RMSprop   Tieleman & Hinton 2012, as torch.optim.RMSprop has it
//   Lion      Chen et al. 2023, algorithm 2
// Their formulas are in kernels/math, in the files of their names.
#include <cmath>

#include "engine/optim/optimizer_kinds.h"
#include "engine/optim/unit_segments.h"
#include "kernels/core/check.h"
#include "kernels/optimizers.h"

namespace dstrain {
namespace {

ElementwiseStep step_of(const OptimizerConfig& config,
                        const UpdateParams& params,
                        double weight_decay) {
  switch (config.kind) {
    case OptimizerKind::kAdamW:
    case OptimizerKind::kAdam: {
      AdamwStep step = adamw_step(config, params, params.learning_rate);
      const bool decoupled = config.kind == OptimizerKind::kAdamW;
      (decoupled ? step.weight_decay : step.gradient_decay) = weight_decay;
      return step;
    }
    case OptimizerKind::kSgd:
      return SgdStep{.learning_rate = params.learning_rate,
                     .momentum = config.momentum,
                     .dampening = config.dampening,
                     .nesterov = config.nesterov,
                     .first = params.update == 1,
                     .weight_decay = weight_decay,
                     .gradient_scale = params.gradient_scale};
    case OptimizerKind::kAdagrad:
      return AdagradStep{.learning_rate = static_cast<float>(params.learning_rate),
                         .epsilon = static_cast<float>(config.epsilon),
                         .weight_decay = static_cast<float>(weight_decay),
                         .gradient_scale = params.gradient_scale};
    case OptimizerKind::kRmsprop:
      return RmspropStep{.learning_rate = params.learning_rate,
                         .alpha = config.alpha,
                         .epsilon = config.epsilon,
                         .momentum = config.momentum,
                         .centered = config.centered,
                         .weight_decay = weight_decay,
                         .gradient_scale = params.gradient_scale};
    case OptimizerKind::kLion:
      return LionStep{.learning_rate = params.learning_rate,
                      .beta1 = params.beta1.value_or(config.beta1),
                      .beta2 = params.beta2.value_or(config.beta2),
                      .weight_decay = weight_decay,
                      .gradient_scale = params.gradient_scale};
    case OptimizerKind::kLamb:
    case OptimizerKind::kMuon:
    case OptimizerKind::kOneBitAdam:
    case OptimizerKind::kZeroOneAdam:
    case OptimizerKind::kOneBitLamb:
      break;
  }
  check(false, "optimizer {} does not update each element on its own",
        static_cast<int>(config.kind));
  return {};
}

class ElementwiseOptimizer final : public Optimizer {
 public:
  explicit ElementwiseOptimizer(const OptimizerParts& parts)
      : config_(parts.config), segments_(parts.blueprint, parts.config.decay, Join::kAlike) {}

  void update(const Site& site,
              std::span<const UnitState> units,
              const UpdateParams& params,
              const UnitUpdated& updated) override {
    for (std::size_t i = 0; i < units.size(); ++i) {
      for (const UnitSegment& segment : segments_.of(units[i].unit)) {
        const Range part = intersection(units[i].range, segment.range);
        if (part.size() > 0) {
          UpdateParams own = params;
          own.learning_rate *= segment.rate_scale;
          site.ops.update(step_of(config_, own, segment.decays ? config_.weight_decay : 0.0),
                          tensors_of(units[i], part, params), site.stream);
        }
      }
      updated(i);
    }
  }

 private:
  const OptimizerConfig& config_;
  UnitSegments segments_;
};

}  // namespace

double bias_correction(const OptimizerConfig& config, double beta, std::int64_t update) {
  return config.bias_correction ? 1.0 - std::pow(beta, static_cast<double>(update)) : 1.0;
}

AdamwStep adamw_step(const OptimizerConfig& config,
                     const UpdateParams& params,
                     double learning_rate) {
  const double beta1 = params.beta1.value_or(config.beta1);
  const double beta2 = params.beta2.value_or(config.beta2);
  return {.learning_rate = learning_rate,
          .beta1 = beta1,
          .beta2 = beta2,
          .epsilon = config.epsilon,
          .bias_correction1 = bias_correction(config, beta1, params.update),
          .bias_correction2 = bias_correction(config, beta2, params.update),
          .gradient_scale = params.gradient_scale};
}

std::unique_ptr<Optimizer> make_elementwise(const OptimizerParts& parts) {
  return std::make_unique<ElementwiseOptimizer>(parts);
}

}  // namespace dstrain
