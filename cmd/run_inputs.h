// RunInputs: whether what a run reads is on this machine, found out once, before every rank of it
// says so. Of other hosts' files: preflight.h.
#pragma once

#include "engine/config/config.h"

namespace dstrain {

/// Throws ConfigError that names all data that is missing, or CheckpointError where
/// checkpoint.resume names what is no checkpoint.
void require_inputs(const Config& config);

}  // namespace dstrain
