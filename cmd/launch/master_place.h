// Finds where rank 0 listens, and the way to it from every other host: the address of rank
// 0's host from which packets to another host leave, asked of that host itself. What hosts call
// themselves, or list first, is often a container's bridge.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cmd/launch/fleet.h"
#include "cmd/launch/host_access.h"
#include "launcher/hosts/host_failure.h"
#include "launcher/hosts/hostfile.h"

namespace dstrain {

/// The user's wishes about it.
struct MasterWish {
  std::string address{};     ///< empty: found by route
  std::string interface {};  ///< each host's; empty: found by route
  std::uint16_t port = 0;    ///< 0: any free one
  std::string listen{};      ///< an address of rank 0's host, or kListenOnAll; empty: `address`
};

/// If an interface is asked for, finds its address on each host; hosts that lack it are failures.
/// Finds an address and a free port on the first host and has all hosts connect to it. The port is
/// free again when this returns. `failures` gets what went wrong.
Master find_master(Fleet& fleet,
                   const std::vector<launcher::Host>& hosts,
                   const MasterWish& wish,
                   std::vector<launcher::HostFailure>& failures);

}  // namespace dstrain
