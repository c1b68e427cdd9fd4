// ShorterSequences: the layers of a plan declared once more, for sequences of fewer tokens. They
// compute in the buffers of the longest sequences, each from its beginning: the shapes are smaller,
// and so is the work, while nothing is allocated.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/model/transformer_stage.h"
#include "engine/plan/blueprint.h"
#include "engine/train/run_plan.h"

namespace dstrain {

struct ShorterSequences {
  /// `sequence` is at most plan.batch.sequence.
  ShorterSequences(const RunPlan& plan, std::int64_t sequence);

  std::int64_t sequence;
  Blueprint blueprint;  ///< of the chunks' buffers, as Arena::shape_buffers takes it
  std::vector<TransformerStage> stages;  ///< of the chunks; as prepared as those of the plan
};

}  // namespace dstrain
