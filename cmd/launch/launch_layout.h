// Turns hosts into a Job: which rank runs where, on which cores, with which environment.
#pragma once

#include <vector>

#include "cmd/launch/host_access.h"
#include "cmd/launch/launch_flags.h"
#include "engine/config/config.h"
#include "launcher/hosts/hostfile.h"
#include "launcher/process/job.h"

namespace dstrain {

int count_ranks(const std::vector<launcher::Host>& hosts);

/// Makes one rank per slot, in the order of the hosts, with a secret that only they share. `run` is
/// what each of them trains, `training` what the config says about that.
launcher::Job make_job(const std::vector<launcher::Host>& hosts,
                       const Master& master,
                       const RunFlags& run,
                       const TrainingConfig& training,
                       const LaunchFlags& flags,
                       const HostAccess& access);

}  // namespace dstrain
