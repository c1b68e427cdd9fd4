// Stochastic gradient descent with momentum, as torch.optim.SGD has it (kernels/math/sgd.h).
#include "engine/optim/elementwise_optimizer.h"
#include "engine/optim/optimizer_kinds.h"

namespace dstrain {
namespace {

class Sgd final : public ElementwiseOptimizer {
 public:
  using ElementwiseOptimizer::ElementwiseOptimizer;

 private:
  void update_range(const Site& site,
                    const UpdateParams& params,
                    double weight_decay,
                    const OptimizerTensors& tensors) const override {
    site.ops.update(SgdStep{.learning_rate = params.learning_rate,
                            .momentum = config().momentum,
                            .dampening = config().dampening,
                            .nesterov = config().nesterov,
                            .first = params.update == 1,
                            .weight_decay = weight_decay,
                            .gradient_scale = params.gradient_scale},
                    tensors, site.stream);
  }
};

}  // namespace

std::unique_ptr<Optimizer> make_sgd(const OptimizerParts& parts) {
  return std::make_unique<Sgd>(parts);
}

}  // namespace dstrain
