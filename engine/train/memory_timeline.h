// MemoryTimeline: what a rank has in use, from visit to visit of one step. The arena holds all of
// the plan from start to end, so that nothing is allocated while training; what is in use of it
// rises and falls, and its highest moment is what a smaller plan would have to change. A layer's
// workspace counts as in use for all of a visit, in forward and in backward.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/plan/memory_components.h"
#include "engine/train/run_plan.h"

namespace dstrain {

struct MemoryMoment {
  enum class Kind : std::uint8_t { kForward, kBackward, kUpdate };
  Kind kind = Kind::kForward;
  int micro_batch = 0;  ///< of a forward or backward
  int unit = 0;         ///< of the rank's blueprint, likewise
  double begin = 0.0;   ///< in the step's work on this rank, from 0 to 1; waiting not counted
  ComponentBytes in_use;
};

struct MemoryTimeline {
  std::vector<MemoryMoment> moments;  ///< in order; the last is the optimizer's
  std::size_t peak = 0;               ///< of the moments: the first of the highest
  ComponentBytes held;                ///< by the arena, all the time

  [[nodiscard]] const MemoryMoment& highest() const { return moments[peak]; }
};

/// Time is counted in matrix products: a backward
/// takes two forwards, and one more where it computes a block again.
MemoryTimeline memory_timeline(const RunPlan& plan);

/// "backward of micro-batch 3, blocks.7" or "optimizer step".
std::string describe(const MemoryMoment& moment, const Blueprint& blueprint);

}  // namespace dstrain
