// ElementwiseOptimizer: what AdamW, SGD, Adagrad and Lion have in common: each element is updated
// on its own, so that any range can be updated by anyone, one pass over each run of parameters that
// decay alike.
#pragma once

#include "engine/optim/optimizer.h"
#include "engine/optim/unit_segments.h"
#include "kernels/optimizers.h"

namespace dstrain {

class ElementwiseOptimizer : public Optimizer {
 public:
  explicit ElementwiseOptimizer(const OptimizerParts& parts)
      : config_(parts.config), segments_(parts.blueprint, parts.config.decay, Join::kAlike) {}

  void update(const Site& site,
              std::span<const UnitState> units,
              const UpdateParams& params,
              const UnitUpdated& updated) final {
    for (std::size_t i = 0; i < units.size(); ++i) {
      for (const UnitSegment& segment : segments_.of(units[i].unit)) {
        const Range part = intersection(units[i].range, segment.range);
        if (part.size() > 0) {
          update_range(site, params, segment.decays ? config_.weight_decay : 0.0,
                       tensors_of(units[i], part, params));
        }
      }
      updated(i);
    }
  }

 protected:
  [[nodiscard]] const OptimizerConfig& config() const { return config_; }

 private:
  virtual void update_range(const Site& site,
                            const UpdateParams& params,
                            double weight_decay,
                            const OptimizerTensors& tensors) const = 0;

  const OptimizerConfig& config_;
  UnitSegments segments_;
};

}  // namespace dstrain
