// TextSampler: the model that an engine trains, as it continues texts between steps. A rank has all
// of it, and reads with the parameters of the moment: where it has them whole, with these, and
// where ranks have parts (ZeRO 3), with copies that begin() gathers. Tensor-parallel ranks read the
// same texts together.
#pragma once

#include <cstdint>

#include "engine/generate/cached_model.h"
#include "engine/parallel/tensor_parallel.h"
#include "engine/runtime/expert_tally.h"
#include "engine/train/engine.h"

namespace dstrain {

class TextSampler {
 public:
  /// `engine` outlives it; its plan has a SamplingPlan.
  explicit TextSampler(Engine& engine);

  /// Collective. The model, which has read nothing; until the next step.
  CachedModel& begin();

  /// Ranks that read together: their number, which of them this rank is in, and whether it is the
  /// one to tell what they read.
  struct Readers {
    int groups = 1;
    int group = 0;
    bool tells = true;
    /// The first of so many texts that a group reads; the next group's is behind its last.
    [[nodiscard]] std::int64_t first_of(std::int64_t texts, int of_group) const {
      return (texts * of_group + groups - 1) / groups;
    }
    [[nodiscard]] Range share(std::int64_t texts) const {
      return {first_of(texts, group), first_of(texts, group + 1)};
    }
  };
  [[nodiscard]] Readers readers() const;

 private:
  Engine& engine_;
  ParameterTable whole_;  // where parameters are gathered
  TensorParallel tensor_parallel_;
  ExpertTally expert_tally_;
  CachedModel model_;
};

}  // namespace dstrain
