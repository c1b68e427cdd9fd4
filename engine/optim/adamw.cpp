// AdamW (Loshchilov & Hutter 2019, algorithm 2) and Adam (Kingma & Ba 2015) with L2 decay, which
// DeepSpeed makes of "Adam" with adam_w_mode false.
#include <cmath>

#include "engine/optim/elementwise_optimizer.h"
#include "engine/optim/optimizer_kinds.h"

namespace dstrain {
namespace {

class AdamW final : public ElementwiseOptimizer {
 public:
  using ElementwiseOptimizer::ElementwiseOptimizer;

 private:
  void update_range(const Site& site,
                    const UpdateParams& params,
                    double weight_decay,
                    const OptimizerTensors& tensors) const override {
    AdamwStep step = adamw_step(config(), params, params.learning_rate);
    const bool decoupled = config().kind == OptimizerKind::kAdamW;
    (decoupled ? step.weight_decay : step.gradient_decay) = weight_decay;
    site.ops.update(step, tensors, site.stream);
  }
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

std::unique_ptr<Optimizer> make_adamw(const OptimizerParts& parts) {
  return std::make_unique<AdamW>(parts);
}

}  // namespace dstrain
