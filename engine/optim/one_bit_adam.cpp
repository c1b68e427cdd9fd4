// 1-bit Adam (Tang et al. 2021, arXiv 2102.02888), as DeepSpeed 0.19 computes it.
//   up to freeze_step   gradients are summed over the ranks; AdamW without bias correction
//   after it            the variance stays as it is; each rank moves the momentum along its own
//                       gradient, and the mean of these momenta, which all ranks receive as signs,
//                       is the new momentum and makes the update
// A momentum needs no sum of its own: what this rank has to say, beta1 · momentum + (1 - beta1) ·
// gradient, is added to what it could not say before, and the momentum is replaced by the mean.
// Per parameter: Adam's, and 4 bytes of what is unsent, with 4/n for n ranks as a server; traffic
// as in engine/plan/sign_layout.h. DeepSpeed counts a first update whose gradient it drops; here
// the first update is one, and freeze_step of them have exact sums.
#include "engine/optim/optimizer_kinds.h"
#include "engine/optim/sign_exchange.h"
#include "engine/optim/unit_segments.h"

namespace dstrain {
namespace {

class OneBitAdam final : public Optimizer {
 public:
  explicit OneBitAdam(const OptimizerParts& parts)
      : config_(parts.config),
        exchange_(parts, parts.scratch.buffers.at(0)),
        segments_(parts.blueprint, parts.config.decay, Join::kAlike) {}

  void update(const Site& site,
              std::span<const UnitState> units,
              const UpdateParams& params,
              const UnitUpdated& updated) override {
    if (travel_of(config_, params.update) == GradientTravel::kSummed) {
      AdamwStep step = adamw_step(config_, params, params.learning_rate);
      update_all(site, units, params, updated, step);
      return;
    }
    exchange_.exchange_momenta(site, units, params.beta1.value_or(config_.beta1),
                               params.gradient_scale);
    OneBitAdamStep step{.learning_rate = params.learning_rate, .epsilon = config_.epsilon};
    update_all(site, units, params, updated, step);
  }

 private:
  template <typename Step>
  void update_all(const Site& site,
                  std::span<const UnitState> units,
                  const UpdateParams& params,
                  const UnitUpdated& updated,
                  Step& step) const {
    for (std::size_t i = 0; i < units.size(); ++i) {
      for (const UnitSegment& segment : segments_.of(units[i].unit)) {
        step.learning_rate = params.learning_rate * segment.rate_scale;
        step.weight_decay = segment.decays ? config_.weight_decay : 0.0;
        site.ops.update(step, tensors_of(units[i], segment.range, params), site.stream);
      }
      updated(i);
    }
  }

  const OptimizerConfig& config_;
  SignExchange exchange_;
  UnitSegments segments_;
};

}  // namespace

std::unique_ptr<Optimizer> make_one_bit_adam(const OptimizerParts& parts) {
  return std::make_unique<OneBitAdam>(parts);
}

}  // namespace dstrain
