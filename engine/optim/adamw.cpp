// AdamW (Loshchilov & Hutter 2019, algorithm 2).
#include "kernels/math/adamw.h"

#include <cmath>

#include "engine/optim/optimizer_kinds.h"
#include "engine/optim/unit_segments.h"

namespace dstrain {
namespace {

class AdamW final : public Optimizer {
 public:
  AdamW(const OptimizerConfig& config, const Blueprint& blueprint)
      : config_(config), segments_(blueprint) {}

  void update(const ExecContext& context,
              std::span<const UnitState> units,
              const UpdateParams& params,
              const UnitUpdated& updated) override {
    for (std::size_t i = 0; i < units.size(); ++i) {
      update_unit(context, units[i], params);
      updated(i);
    }
  }

 private:
  void update_unit(const ExecContext& context, const UnitState& unit, const UpdateParams& params) {
    AdamwStep step = step_of(params);
    for (const UnitSegment& segment : segments_.of(unit.unit)) {
      const Range part = intersection(unit.range, segment.range);
      if (part.size() == 0) {
        continue;
      }
      step.weight_decay = segment.decays ? static_cast<float>(config_.weight_decay) : 0.0F;
      context.ops.adamw(step, part_of(unit.gradient, unit.range, part),
                        part_of(unit.master, unit.range, part),
                        part_of(unit.first_moment, unit.range, part),
                        part_of(unit.second_moment, unit.range, part),
                        part_of(unit.parameters, unit.range, part), context.compute);
    }
  }

  [[nodiscard]] AdamwStep step_of(const UpdateParams& params) const {
    const double beta1 = params.beta1.value_or(config_.beta1);
    const auto correction = [&](double beta) {
      return config_.bias_correction ? 1.0 - std::pow(beta, static_cast<double>(params.update))
                                     : 1.0;
    };
    return {.learning_rate = static_cast<float>(params.learning_rate),
            .beta1 = static_cast<float>(beta1),
            .beta2 = static_cast<float>(config_.beta2),
            .epsilon = static_cast<float>(config_.epsilon),
            .weight_decay = 0.0F,
            .bias_correction1 = static_cast<float>(correction(beta1)),
            .bias_correction2 = static_cast<float>(correction(config_.beta2)),
            .gradient_scale = params.gradient_scale};
  }

  OptimizerConfig config_;
  UnitSegments segments_;
};

}  // namespace

std::unique_ptr<Optimizer> make_adamw(const OptimizerParts& parts) {
  return std::make_unique<AdamW>(parts.config, parts.blueprint);
}

}  // namespace dstrain
