// The optimizers, one file each; make_optimizer chooses by OptimizerConfig::kind.
#pragma once

#include <memory>

#include "engine/optim/optimizer.h"

namespace dstrain {

/// AdamW, and Adam with the decay in the gradient (OptimizerKind::kAdam).
std::unique_ptr<Optimizer> make_adamw(const OptimizerParts& parts);

}  // namespace dstrain
