// Compares the operations that a rank issued in a step with those in its plan.
#pragma once

#include <string>
#include <vector>

#include "engine/train/run_plan.h"
#include "tests/harness/recording_communicator.h"

namespace dstrain::test {

/// The first entry that is not as planned, as a sentence; empty if all are, in the order in which
/// they were issued.
std::string difference(const RunPlan& plan,
                       const std::vector<CollectiveLog::Entry>& recorded,
                       GradientTravel travel = GradientTravel::kSummed);

}  // namespace dstrain::test
