// RunGoal: what a run is started for.
#pragma once

#include <cstdint>

namespace dstrain {

enum class RunGoal : std::uint8_t {
  kTrain,
  /// Computes the loss over data.validation, of the newest checkpoint or else of the start weights:
  /// no step is done and nothing is written.
  kEvaluate,
  /// The same for each source of data.validation by itself, and all of its sequences.
  kEvaluateSources
};

}  // namespace dstrain
