// Plans what a run holds beside what it trains in order to continue texts between steps and have
// them rewarded: the model declared once more with caches, the parameters that it began with, a
// model that scores.
#pragma once

#include <optional>
#include <vector>

#include "engine/config/config.h"
#include "engine/plan/mesh.h"
#include "engine/train/run_plan.h"

namespace dstrain {

/// Declares the model of `shape` once more, to continue texts of up to a sequence's length, and
/// adds its buffers to the blueprint; nothing where the run continues no texts.
std::optional<SamplingPlan> plan_sampling(const Config& config,
                                          const BatchPlan& batch,
                                          const Mesh& mesh,
                                          LayerShape shape,
                                          Blueprint& blueprint);

/// Adds buffers for the parameters that rewards measure a divergence from: RunPlan::reference.
std::vector<BufferRef> plan_reference(const Config& config, DType compute, Blueprint& blueprint);

/// The plan of the model that rewards what is sampled: RunPlan::scoring.
std::optional<GenerationPlan> plan_scoring(const Config& config, const LayerShape& shape);

}  // namespace dstrain
