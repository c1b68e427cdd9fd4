// What a run will start from, looked at by `dstrain launch` before a rank is started, as far as
// this machine sees the files. The ranks look again.
#pragma once

#include "cmd/launch/launch_flags.h"
#include "engine/config/config_json.h"

namespace dstrain {

/// Throws ConfigError where data, weights and tokenizer do not belong together. With --check says
/// what the run would resume, what has changed since, and whose the folder is. Returns whether
/// anything is left to do: if not, it has said so.
bool check_start(const LaunchFlags& flags, const LoadedConfig& loaded);

}  // namespace dstrain
