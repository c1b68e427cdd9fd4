// The report of one or several runs as one page of HTML, with everything in it.
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

/// `runs` is not empty.
std::string report_page(const std::vector<ReportedRun>& runs);

}  // namespace dstrain
