// Slurm: the hosts of the allocation that this process runs in, and the command that starts one
// agent on each of them. Slurm places and accounts; what runs on the hosts is dstrain's as always.
//
// The agents connect back (agent_listener.h) instead of talking through srun, which passes its
// tasks' output on line by line and all of it through one pipe.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/hosts/hostfile.h"

namespace dstrain::launcher {

/// "n[01-03,7],login" → n01 n02 n03 n7 login; also several brackets in one name, "r[1-2]n[1-2]".
/// Throws HostfileError, naming the text, if it is malformed or has more than 65536 hosts.
std::vector<std::string> expand_hostlist(std::string_view text);

/// "2(x3),1" → 2 2 2 1: how Slurm writes one number for each host. Throws likewise.
std::vector<int> expand_counts(std::string_view text);

/// The allocation's hosts in its own order, with a slot for each task that was asked for: from
/// SLURM_JOB_NODELIST and SLURM_TASKS_PER_NODE. Throws HostfileError, naming the variable and what
/// to do, outside of an allocation.
std::vector<Host> hosts_of_slurm_allocation(
    const std::function<std::optional<std::string>(const std::string& name)>& environment);

/// Runs `agent` once on each of the hosts, with all that the allocation has there.
std::vector<std::string> srun_command(const std::string& srun,
                                      const std::vector<Host>& hosts,
                                      const std::vector<std::string>& agent);

}  // namespace dstrain::launcher
