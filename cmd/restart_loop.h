// The loop around a run: an attempt, and where it failed and --max-restarts allows it, the next one
// from the newest checkpoint, on the hosts that are left.
#pragma once

#include <vector>

#include "cmd/host_access.h"
#include "cmd/launch_flags.h"
#include "engine/spec/config_json.h"
#include "launcher/hostfile.h"

namespace dstrain {

/// Returns the launcher's exit code. `whole` is what the user's flags resolve to over all `hosts`.
int run_until_done(const LaunchFlags& flags,
                   const LoadedConfig& whole,
                   const std::vector<launcher::Host>& hosts,
                   HostAccess& access);

}  // namespace dstrain
