// Adagrad (Duchi et al. 2011), as torch.optim.Adagrad has it (kernels/math/adagrad.h).
#include "engine/optim/elementwise_optimizer.h"
#include "engine/optim/optimizer_kinds.h"

namespace dstrain {
namespace {

class Adagrad final : public ElementwiseOptimizer {
 public:
  using ElementwiseOptimizer::ElementwiseOptimizer;

 private:
  void update_range(const Site& site,
                    const UpdateParams& params,
                    double weight_decay,
                    const OptimizerTensors& tensors) const override {
    site.ops.update(AdagradStep{.learning_rate = static_cast<float>(params.learning_rate),
                                .epsilon = static_cast<float>(config().epsilon),
                                .weight_decay = static_cast<float>(weight_decay),
                                .gradient_scale = params.gradient_scale},
                    tensors, site.stream);
  }
};

}  // namespace

std::unique_ptr<Optimizer> make_adagrad(const OptimizerParts& parts) {
  return std::make_unique<Adagrad>(parts);
}

}  // namespace dstrain
