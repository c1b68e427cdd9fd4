// Refuses input that is not plain text, in one sentence that names it and what can be done, rather
// than training on it as if it were, or silently leaving it out.
#pragma once

#include <vector>

#include "engine/data/input/input_files.h"

namespace dstrain {

/// Throws ConfigError unless `files` is empty.
void refuse_not_text(const std::vector<NotTextFile>& files);

}  // namespace dstrain
