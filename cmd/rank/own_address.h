// Finds the address by which other hosts reach this one: the one from which packets to rank 0's
// host leave. Asking the routing table beats a host's list of names and interfaces, whose first
// entry is often that of a container bridge.
#pragma once

#include <cstdint>
#include <string>

namespace dstrain {

/// Throws RendezvousError if the host is unknown, there is no way to it, or the answer is a
/// loopback address, which no other host could use.
std::string own_address_towards(const std::string& host, std::uint16_t port);

/// The network interface of this host that has this numeric address, "eth0"; empty if none has.
std::string interface_with(const std::string& address);

}  // namespace dstrain
