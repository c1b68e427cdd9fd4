// One attempt at a run: from chosen hosts to the outcome of a job of which nothing is left. The
// loop around it (restart_loop.h) decides whether there is another one.
#pragma once

#include <memory>
#include <vector>

#include "cmd/launch/host_access.h"
#include "cmd/launch/launch_flags.h"
#include "engine/checkpoint/owner/run_owner.h"
#include "engine/config/config.h"
#include "launcher/hosts/hostfile.h"
#include "launcher/supervision/supervisor.h"

namespace dstrain {

struct LaunchAttempt {
  std::vector<launcher::Host> hosts;
  RunFlags run;     ///< the user's flags, with what this attempt changes
  int restart = 0;  ///< how many attempts there were before
};

/// Each attempt has a port and a secret of its own. `config` is what `attempt.run` resolves to.
/// `claim` on the run's folder is made, where there is none yet, before anything is written or
/// started.
launcher::JobOutcome run_attempt(const LaunchAttempt& attempt,
                                 const LaunchFlags& flags,
                                 const Config& config,
                                 HostAccess& access,
                                 std::unique_ptr<RunOwner>& claim);

}  // namespace dstrain
