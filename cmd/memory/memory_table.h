// What the ranks of a run will hold: components down, pipeline stages across. The same table for
// estimate-memory and for launch --check.
#pragma once

#include <string>

#include "engine/train/run_outline.h"

namespace dstrain {

/// With a heading that says the unit. Of more stages than a terminal is wide, the first, the last,
/// the fullest and some between them; a line says so.
std::string memory_table(const RunOutline& outline);

}  // namespace dstrain
