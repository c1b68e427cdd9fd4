// 0/1 Adam (Lu et al. 2022, arXiv 2202.06009, algorithm 1), with DeepSpeed 0.19's choice of when
// ranks exchange what (ZeroOneSchedule).
//   while the variance moves   exact sums of gradients make AdamW's update without bias correction;
//                              between them the mean gradient comes as signs, and moves the
//                              momentum alone
//   once it is frozen          each rank steps by its own gradients, and adds up rate · momentum;
//                              from time to time the mean of these sums comes as signs: it moves
//                              what the ranks agree on, the master, and becomes the momentum
// Between such times, parameters = master - sum / (√variance + ε), and parameters and momenta
// differ from rank to rank. What is unsent begins anew as the variance is frozen, since it is of
// gradients before and of momenta after. Per parameter: Adam's, 4 bytes for the sum, 4 of what is
// unsent, with 4/n for n ranks as a server; a master beside the parameters in fp32 too. Weight
// decay acts on the master, the same on all ranks. DeepSpeed adds it to what is summed, from where
// it gets into the momentum: it then acts many times over, and is not followed.
#include <type_traits>

#include "engine/optim/optimizer_kinds.h"
#include "engine/optim/sign_exchange.h"
#include "engine/optim/unit_segments.h"

namespace dstrain {
namespace {

constexpr const char* kRates = "sum of rates since the ranks agreed";

class ZeroOneAdam final : public Optimizer {
 public:
  explicit ZeroOneAdam(const OptimizerParts& parts)
      : config_(parts.config),
        exchange_(parts, parts.scratch.buffers.at(0)),
        segments_(parts.blueprint, parts.config.decay, Join::kAlike) {}

  void update(const Site& site,
              std::span<const UnitState> units,
              const UpdateParams& params,
              const UnitUpdated& updated) override {
    const GradientTravel travel = travel_of(config_, params.update);
    if (params.update > config_.freeze_step) {
      step_alone(site, units, params);
      if (travel == GradientTravel::kCoded) agree(site, units, params);
    } else {
      move(site, units, params, travel);
    }
    for (std::size_t i = 0; i < units.size(); ++i) {
      updated(i);
    }
  }

  /// A step of no length.
  void refresh_parameters(const Site& site, const UnitState& unit) override {
    OptimizerTensors tensors = tensors_of(unit, unit.range, {});
    tensors.gradient = unit.third_moment;  // of no weight, but finite
    site.ops.update(LocalStep{.beta1 = 1.0, .epsilon = config_.epsilon, .gradient_scale = 0.0},
                    tensors, site.stream);
  }

  [[nodiscard]] Numbers numbers(const Site& /*site*/) const override {
    return is_alone_ ? Numbers{{kRates, {rates_}}} : Numbers{};
  }
  void restore(const Site& /*site*/, const Numbers& numbers) override {
    const auto found = numbers.find(kRates);
    is_alone_ = found != numbers.end();
    rates_ = is_alone_ ? found->second.at(0) : 0.0;
  }

 private:
  /// Begins rows of the other kind, also where a resumed run's freeze_step is not the checkpoint's.
  void begin(const Site& site, bool alone) {
    if (alone == is_alone_) return;
    exchange_.forget(site);
    is_alone_ = alone;
    rates_ = 0.0;
  }

  /// The update while the variance moves.
  void move(const Site& site,
            std::span<const UnitState> units,
            const UpdateParams& params,
            GradientTravel travel) {
    begin(site, /*alone=*/false);
    AdamwStep step = adamw_step(config_, params, params.learning_rate);
    if (travel == GradientTravel::kCoded) {
      for (const UnitState& unit : units) {
        site.ops.add_scaled(unit.gradient, params.gradient_scale, exchange_.row(site, unit.unit),
                            Write::kAdd, site.stream);
      }
      exchange_.exchange(site);
      step.gradient_scale = 1.0;
      step.beta2 = 1.0;  // the variance stays
    }
    update_all(site, units, params, step);
  }

  void step_alone(const Site& site, std::span<const UnitState> units, const UpdateParams& params) {
    begin(site, /*alone=*/true);
    rates_ += params.learning_rate;
    LocalStep step{.learning_rate = params.learning_rate,
                   .beta1 = params.beta1.value_or(config_.beta1),
                   .epsilon = config_.epsilon,
                   .gradient_scale = params.gradient_scale};
    update_all(site, units, params, step);
  }

  void agree(const Site& site, std::span<const UnitState> units, const UpdateParams& params) {
    for (const UnitState& unit : units) {
      site.ops.add_scaled(unit.third_moment, 1.0F, exchange_.row(site, unit.unit), Write::kAdd,
                          site.stream);
    }
    exchange_.exchange(site);
    for (const UnitState& unit : units) {
      for (const UnitSegment& segment : segments_.of(unit.unit)) {
        site.ops.update(SyncStep{.epsilon = config_.epsilon, .rates = rates_ * segment.rate_scale},
                        tensors_of(unit, segment.range, params), site.stream);
      }
    }
    rates_ = 0.0;
  }

  template <typename Step>
  void update_all(const Site& site,
                  std::span<const UnitState> units,
                  const UpdateParams& params,
                  Step& step) const {
    for (const UnitState& unit : units) {
      for (const UnitSegment& segment : segments_.of(unit.unit)) {
        step.learning_rate = params.learning_rate * segment.rate_scale;
        step.weight_decay = segment.decays ? config_.weight_decay : 0.0;
        OptimizerTensors tensors = tensors_of(unit, segment.range, params);
        if constexpr (std::is_same_v<Step, AdamwStep>) tensors.third_moment = {};
        site.ops.update(step, tensors, site.stream);
      }
    }
  }

  const OptimizerConfig& config_;
  SignExchange exchange_;
  UnitSegments segments_;
  bool is_alone_ = false;  // rows are of sums that ranks made alone, not of gradients
  double rates_ = 0.0;     // of updates since the ranks agreed
};

}  // namespace

std::unique_ptr<Optimizer> make_zero_one_adam(const OptimizerParts& parts) {
  return std::make_unique<ZeroOneAdam>(parts);
}

}  // namespace dstrain
