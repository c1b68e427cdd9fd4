// RunInputs: whether what a run reads is on this machine, found out once, before every rank of it
// says so. For other hosts' files see preflight.h.
#pragma once

#include "engine/config/config.h"

namespace dstrain {

/// Throws ConfigError that names all data that is missing, or CheckpointError where
/// checkpoint.resume names what is no checkpoint.
void require_inputs(const Config& config);

}  // namespace dstrain
