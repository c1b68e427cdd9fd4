// AdamW over flat ranges of units: the same numbers whatever the range, so that ranks may share
// the work in any way. Matrices decay, norms and biases do not (ParamDecl::decays).
#pragma once

#include <cstdint>
#include <vector>

#include "engine/plan/shard_map.h"
#include "engine/runtime/exec_context.h"
#include "engine/spec/config.h"
#include "kernels/math/adamw.h"

namespace dstrain {

class AdamW {
 public:
  AdamW(const OptimizerConfig& config, const Blueprint& blueprint);

  /// Updates elements `range` of a unit in place. The tensors are whole units, flat; `parameters`
  /// is the compute copy, or empty where the master is what the model computes with.
  /// `update` counts from 1; `gradient_scale` multiplies the gradient first.
  struct Tensors {
    ConstTensor gradient;
    Tensor master;
    Tensor exp_avg;
    Tensor exp_avg_sq;
    Tensor parameters;
  };
  void update(const ExecContext& context,
              int unit,
              Range range,
              const Tensors& tensors,
              double learning_rate,
              std::int64_t update,
              float gradient_scale) const;

 private:
  /// Neighbouring parameters with the same decay.
  struct Segment {
    Range range;
    bool decays;
  };
  OptimizerConfig config_;
  std::vector<std::vector<Segment>> segments_;  // by unit
};

}  // namespace dstrain
