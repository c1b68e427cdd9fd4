// What the ranks of a run will hold: components down, pipeline stages across. The same table for
// estimate-memory and for launch --check.
#pragma once

#include <string>

#include "engine/train/run_outline.h"

namespace dstrain {

/// "12.50 GiB", "382.1 MiB", "64 bytes": for people.
std::string size_text(std::int64_t bytes);

/// In GiB. Of more stages than a terminal is wide, the first, the last, the fullest and some
/// between them; a line says so.
std::string memory_table(const RunOutline& outline);

}  // namespace dstrain
