// A run whose nodes are each started by hand, without SSH: `dstrain launch --node_rank K …` on
// every one of them. Node 0 leads as the launcher of a fleet does; the others are its agents.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "cmd/launch/fleet_access.h"
#include "cmd/launch/launch_flags.h"
#include "launcher/hosts/hostfile.h"

namespace dstrain {

/// Whether the flags say that other launchers are started by hand for the same run.
bool is_by_hand(const LaunchFlags& flags);

/// The nodes as this one can know them before it has met the others.
struct NodesByHand {
  std::optional<int> own_rank;        ///< empty: the rendezvous decides
  std::vector<launcher::Host> hosts;  ///< by node rank; without a hostfile, all are like this one
  launcher::Host own;
  bool has_hostfile = false;
};

/// `chosen`: the hosts that hostfile and filters give, or else this machine alone. Completes
/// `flags` with the address of node 0. Throws launcher::UsageError.
NodesByHand find_nodes_by_hand(LaunchFlags& flags,
                               const std::vector<launcher::Host>& chosen,
                               bool has_hostfile);

/// Leads the run, or joins it. `lead` performs the run once all hosts have arrived; it returns the
/// launcher's exit code, as this does.
using LeadRun = std::function<int(const std::vector<launcher::Host>& hosts, FleetAccess& access)>;
int launch_by_hand(const LaunchFlags& flags, const NodesByHand& nodes, const LeadRun& lead);

}  // namespace dstrain
