// MasterPlace: where rank 0 listens, and the way to it from every other host: the address of rank
// 0's host from which packets to another host leave, asked of that host itself. What hosts call
// themselves, or list first, is often a container's bridge.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cmd/launch/fleet.h"
#include "launcher/hosts/host_failure.h"
#include "launcher/hosts/hostfile.h"

namespace dstrain {

/// The user's wishes about it.
struct MasterWish {
  std::string address{};     ///< empty: found by route
  std::string interface {};  ///< of every host; empty: found by route
  std::uint16_t port = 0;    ///< 0: any free one
  std::string listen{};      ///< on rank 0's host, or kListenOnAll; empty: on the address
};

struct MasterPlace {
  std::string address{};
  std::uint16_t port = 0;
  std::string listen_address{};            ///< of rank 0's host, or kListenOnAll
  std::map<std::string, double> way_ms{};  ///< that connecting took, by host
  /// The address of each host for which it does not follow from the route to rank 0.
  std::map<std::string, std::string> own_addresses{};
};

/// If an interface is asked for, finds its address on each host; hosts that lack it are failures.
/// Finds an address and a free port on the first host and has all hosts connect to it. The port is
/// free again when this returns. `failures` gets what went wrong.
MasterPlace find_master(Fleet& fleet,
                        const std::vector<launcher::Host>& hosts,
                        const MasterWish& wish,
                        std::vector<launcher::HostFailure>& failures);

}  // namespace dstrain
