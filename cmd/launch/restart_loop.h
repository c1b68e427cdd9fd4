// The loop around a run: an attempt, and where it failed and --max-restarts allows it, the next one
// from the newest checkpoint, on the hosts that are left.
#pragma once

#include <vector>

#include "cmd/launch/host_access.h"
#include "cmd/launch/launch_flags.h"
#include "engine/config/config_json.h"
#include "launcher/hosts/hostfile.h"

namespace dstrain {

/// The hosts that take part when all of them can: the run as it is meant.
std::vector<launcher::Host> without_standbys(const LaunchFlags& flags,
                                             std::vector<launcher::Host> hosts);

/// Returns the launcher's exit code. `whole` is what the user's flags resolve to over the hosts
/// that are not standbys.
int run_until_done(const LaunchFlags& flags,
                   const LoadedConfig& whole,
                   const std::vector<launcher::Host>& hosts,
                   HostAccess& access);

}  // namespace dstrain
