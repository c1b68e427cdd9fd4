// The parts of a report. Each function returns a piece of HTML, empty where there is nothing to
// show.
#pragma once

#include <string>
#include <vector>

#include "cmd/report/reported_run.h"

namespace dstrain {

/// Shows what each run is and how it does, in a column of its own.
std::string overview_part(const ReportedRuns& runs);
/// Draws loss, rate, speed, memory and so on over steps.
std::string curves_part(const ReportedRuns& runs);
/// Shows where the time of each run went, as rank 0's phases have it.
std::string time_part(const ReportedRuns& runs);
/// Draws what each rank does in a step, of the newest trace of each run.
std::string timeline_part(const ReportedRuns& runs);
/// Draws the memory of every rank and the load of every expert at the last step that has them.
std::string ranks_part(const ReportedRuns& runs);
/// Lists when each run was started, on what, and how that ended.
std::string starts_part(const ReportedRuns& runs);
/// Lists the values of configs and where they come from, those that differ first.
std::string config_part(const ReportedRuns& runs);

// Several parts need these.

/// Return the class of a run's colour, and a patch of it.
std::string run_class(std::size_t index);
std::string swatch(std::size_t index);
/// "16 ranks, 2 pipeline, 4 data, 2 tensor; ZeRO stage 1".
std::string layout_text(const RunStart& start);
/// Returns a column as doubles; "memory_bytes.expected" is what is planned with what is expected
/// beside it.
std::vector<double> values_of(const MetricsColumns& metrics, const std::string& path);
/// Returns the sum of a column's finite values.
double sum_of(const std::vector<float>& column);

}  // namespace dstrain
