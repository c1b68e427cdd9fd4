// A run that a report is about: what its folder says of it.
#pragma once

#include <string>
#include <vector>

#include "cmd/runs/metrics_columns.h"
#include "cmd/runs/run_overview.h"

namespace dstrain {

struct ReportedRun {
  std::string name;  ///< of its folder, as short as tells it from the others
  RunOverview overview;
  MetricsColumns metrics;
};
using ReportedRuns = std::vector<ReportedRun>;

}  // namespace dstrain
