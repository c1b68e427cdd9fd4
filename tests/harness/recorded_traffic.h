// What a rank was recorded to issue in a step, against what its plan lists.
#pragma once

#include <string>
#include <vector>

#include "engine/train/run_plan.h"
#include "tests/harness/recording_communicator.h"

namespace dstrain::test {

/// The first entry that is not as planned, in a sentence; empty: all are, in the order in which
/// they were issued.
std::string difference(const RunPlan& plan, const std::vector<CollectiveLog::Entry>& recorded);

}  // namespace dstrain::test
