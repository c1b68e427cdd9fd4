// Checks the files that a run will start from before `dstrain launch` starts a rank, as far as this
// machine sees them. The ranks look again.
#pragma once

#include "cmd/launch/launch_flags.h"
#include "engine/config/config_json.h"

namespace dstrain {

/// Throws ConfigError where data, weights and tokenizer do not belong together. With --check, says
/// what the run would resume, what has changed since, and whose the folder is. Returns whether
/// anything is left to do; if not, it has informed the user.
bool check_start(const LaunchFlags& flags, const LoadedConfig& loaded);

}  // namespace dstrain
