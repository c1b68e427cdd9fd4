// Input that is no plain text is refused in one sentence that names it and the ways on, rather than
// trained on as if it were, or left out in silence.
#pragma once

#include <vector>

#include "engine/data/input/input_files.h"

namespace dstrain {

/// Throws ConfigError unless `files` is empty.
void refuse_not_text(const std::vector<NotTextFile>& files);

}  // namespace dstrain
