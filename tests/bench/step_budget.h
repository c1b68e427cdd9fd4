// Where the time of a step goes, operation by operation, and how long each would take if it ran at
// the processor's limit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/core/trace_log.h"

namespace dstrain::bench {

/// Operations of one name and sizes.
struct BudgetRow {
  std::string name;
  std::string sizes;   ///< m×n×k of a product; empty: not told
  double count = 0.0;  ///< of a step, as all below
  double seconds = 0.0;
  double flops = 0.0;
  double bytes = 0.0;     ///< that must be read and written at least; what lies in a cache too
  bool is_known = false;  ///< what it does
  double limit = 0.0;     ///< seconds at the processor's limit; where that is not known, its own
};

struct MachineLimits {
  double flops = 0.0;  ///< a second
  double bytes = 0.0;  ///< a second, from memory
};

/// Of what one thread recorded in `steps` steps; those that lose most first.
std::vector<BudgetRow> step_budget(const std::vector<TraceTrack>& tracks,
                                   std::int64_t steps,
                                   const MachineLimits& machine);

/// A table; `step_seconds` is the time of a whole step, with what lies between operations.
std::string budget_text(const std::vector<BudgetRow>& rows, double step_seconds);

}  // namespace dstrain::bench
