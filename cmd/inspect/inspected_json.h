// The samples of --inspect as JSON: for each stretch of tokens ids, positions and the mask of the
// loss.
#pragma once

#include <string>

#include "cmd/inspect/inspected_run.h"

namespace dstrain {

std::string inspected_json(const InspectedRun& run);

}  // namespace dstrain
