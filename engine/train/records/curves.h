// The curves of a run that other programs show: the names and values are the same in all of their
// formats. metrics.jsonl has the rest.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "engine/train/step_metrics.h"

namespace dstrain {

struct Curve {
  std::string_view name;     ///< "train/loss": programs group curves by what is before the slash
  std::string_view meaning;  ///< what the name does not say
  std::optional<double> (*value)(const StepMetrics&);  ///< none: not measured in that step
};

/// Those over steps. Every run has the same, in this order.
const std::vector<Curve>& curves();

/// Those that DeepSpeed writes, over samples.
const std::vector<Curve>& deepspeed_curves();

}  // namespace dstrain
