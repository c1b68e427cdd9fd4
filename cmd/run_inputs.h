// RunInputs: checks once that what a run reads is on this machine, before every rank reports the
// same. For other hosts' files see preflight.h.
#pragma once

#include "engine/config/config.h"

namespace dstrain {

/// Throws ConfigError that names all data that is missing, or CheckpointError where
/// checkpoint.resume names something that is not a checkpoint.
void require_inputs(const Config& config);

}  // namespace dstrain
