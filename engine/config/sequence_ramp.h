// SequenceRamp: sequences that grow at the start of a run, as DeepSpeed's curriculum learning by
// "seqlen" has it (Li, Zhang, He 2022, "The stability-efficiency dilemma: investigating sequence
// length warmup for training GPT models"). A step takes the first tokens of each sequence.
#pragma once

#include <cstdint>
#include <vector>

namespace dstrain {

enum class LengthSchedule : std::uint8_t { kFixedLinear, kFixedRoot, kFixedDiscrete };

/// "curriculum_learning". Lengths are tokens; in DeepSpeed's words, difficulties.
struct SequenceRamp {
  bool enabled = false;
  std::int64_t shortest = 0;  ///< min_difficulty
  std::int64_t longest = 0;   ///< max_difficulty
  LengthSchedule schedule = LengthSchedule::kFixedLinear;
  // For the linear and the root schedule.
  std::int64_t total_steps = 0;  ///< total_curriculum_step
  std::int64_t multiple_of = 0;  ///< difficulty_step: all lengths but the longest are a multiple
  double root_degree = 0.0;      ///< root
  // For the discrete schedule: lengths[i] up to step last_steps[i], and the last length for all
  // later steps.
  std::vector<std::int64_t> lengths;     ///< difficulty
  std::vector<std::int64_t> last_steps;  ///< max_step

  /// The length in step 1, 2, …, by DeepSpeed 0.19's formulas.
  [[nodiscard]] std::int64_t length_at(std::int64_t step) const;

  bool operator==(const SequenceRamp&) const = default;
};

}  // namespace dstrain
