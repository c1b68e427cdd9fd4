// A table of what the ranks of a run will hold: components down, pipeline stages across.
// estimate-memory and launch --check print the same one.
#pragma once

#include <string>

#include "engine/train/run_outline.h"

namespace dstrain {

/// The heading gives the unit. If there are more stages than fit on a terminal, the table has the
/// first, the last, the fullest and some between them, and a line says so.
std::string memory_table(const RunOutline& outline);

}  // namespace dstrain
