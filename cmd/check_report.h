// CheckReport: what `dstrain launch --check` prints about a run: for people a few lines and a table
// of the pipeline's stages in GiB, for scripts the same as JSON in bytes.
#pragma once

#include <string>

#include "engine/spec/config.h"
#include "engine/train/run_outline.h"

namespace dstrain {

/// `outline` is that of `config`, which is resolved.
std::string to_text(const RunOutline& outline, const Config& config);
std::string to_json(const RunOutline& outline, const Config& config);

}  // namespace dstrain
