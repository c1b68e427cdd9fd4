// TextSampler: the model that an engine trains, as it continues texts between steps. A rank has all
// of it, and reads with the parameters of the moment; nothing is copied.
#pragma once

#include <memory>

#include "engine/comm/communicator.h"
#include "engine/generate/cached_model.h"
#include "engine/parallel/tensor_parallel.h"
#include "engine/runtime/expert_tally.h"
#include "engine/train/engine.h"

namespace dstrain {

class TextSampler {
 public:
  /// `engine` outlives it; its plan has a SamplingPlan.
  explicit TextSampler(Engine& engine);

  /// The model, which has read nothing; until the next step.
  CachedModel& begin();

 private:
  Engine& engine_;
  std::unique_ptr<Communicator> alone_;  // stands in for a tensor-parallel group
  TensorParallel tensor_parallel_;
  ExpertTally expert_tally_;
  CachedModel model_;
};

}  // namespace dstrain
