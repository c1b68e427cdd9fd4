// Findings: what makes a run's steps slow, the greatest first, by name where there is one, and what
// would help.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cmd/runs/run_overview.h"
#include "cmd/why/step_account.h"

namespace dstrain {

struct Finding {
  std::string what;                 ///< a sentence: who or what, and how much of the time
  double share = 0.0;               ///< of the wall time that it costs
  std::string advice;               ///< a sentence; empty: none
  std::vector<std::string> sets{};  ///< KEY=VALUE, to be tried together
  double gain = 0.0;                ///< the share of the wall time that they would save, at most
  std::optional<double> price{};    ///< that which they are expected to save (priced_run.h)
};

/// Returns everything that costs a thirtieth of the wall time or more. Ranks, groups, links
/// and stages are those that `ranks` tells of.
std::vector<Finding> findings_of(const RunOverview& run,
                                 const StepAccount& account,
                                 const RankSeconds& ranks);

/// "rank 3 on h1", as far as the run's last start says on which host.
std::string rank_name(const RunOverview& run, int rank);

/// Returns the idle share of a step that the schedule has by itself; 0 without a pipeline.
double planned_idle_share(const RunOverview& run);

}  // namespace dstrain
