// The loop around a run: an attempt, and where it failed and --max-restarts allows it, the next one
// from the newest checkpoint, on the hosts that are left.
#pragma once

#include <vector>

#include <asio.hpp>

#include "cmd/launch_flags.h"
#include "engine/spec/config_json.h"
#include "launcher/host_pool.h"
#include "launcher/process.h"

namespace dstrain {

/// How ranks are started, and how it is found out who cannot start any.
struct RunsOn {
  asio::io_context& loop;
  launcher::Spawner& spawner;
  launcher::HostPool::FindSilent find_silent;  ///< asked before every attempt
};

/// Returns the launcher's exit code. `whole` is what the user's flags resolve to over all `hosts`.
int run_until_done(const LaunchFlags& flags,
                   const LoadedConfig& whole,
                   const std::vector<launcher::Host>& hosts,
                   const RunsOn& on);

}  // namespace dstrain
