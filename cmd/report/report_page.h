// The report of one or several runs as one page of HTML, with everything in it.
#pragma once

#include <string>

#include "cmd/report/reported_run.h"

namespace dstrain {

/// `runs` is not empty.
std::string report_page(const ReportedRuns& runs);

}  // namespace dstrain
