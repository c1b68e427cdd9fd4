// From hosts to a Job: which rank runs where, on which cores, with which environment.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cmd/launch_flags.h"
#include "launcher/hostfile.h"
#include "launcher/job.h"

namespace dstrain {

int count_ranks(const std::vector<launcher::Host>& hosts);

/// Where rank 0 listens.
struct Master {
  std::string address;
  std::uint16_t port = 0;
};
/// The given address and port, or loopback and any free port. Throws launcher::PreflightError,
/// naming who holds it, if the port is taken.
Master choose_master(const LaunchFlags& flags);

/// One rank a slot, in the order of the hosts, with a secret of their own. `run` is what each of
/// them trains.
launcher::Job make_job(const std::vector<launcher::Host>& hosts,
                       const Master& master,
                       const RunFlags& run,
                       const LaunchFlags& flags);

}  // namespace dstrain
