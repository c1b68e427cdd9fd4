// Lion (Chen et al. 2023, algorithm 2; kernels/math/lion.h).
#include "engine/optim/elementwise_optimizer.h"
#include "engine/optim/optimizer_kinds.h"

namespace dstrain {
namespace {

class Lion final : public ElementwiseOptimizer {
 public:
  using ElementwiseOptimizer::ElementwiseOptimizer;

 private:
  void update_range(const Site& site,
                    const UpdateParams& params,
                    double weight_decay,
                    const OptimizerTensors& tensors) const override {
    site.ops.update(LionStep{.learning_rate = params.learning_rate,
                             .beta1 = params.beta1.value_or(config().beta1),
                             .beta2 = params.beta2.value_or(config().beta2),
                             .weight_decay = weight_decay,
                             .gradient_scale = params.gradient_scale},
                    tensors, site.stream);
  }
};

}  // namespace

std::unique_ptr<Optimizer> make_lion(const OptimizerParts& parts) {
  return std::make_unique<Lion>(parts);
}

}  // namespace dstrain
