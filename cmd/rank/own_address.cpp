#include "cmd/rank/own_address.h"

#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "cmd/exit_codes.h"
#include "engine/base/network_address.h"

namespace dstrain {

std::string own_address_towards(const std::string& host, std::uint16_t port) {
  const AddressLookup there = look_up_addresses(host.c_str(), port);
  if (!there) throw RendezvousError(fmt::format("MASTER_ADDR {}: {}", host, there.error));
  std::string address = own_address_towards(there);
  if (address.empty()) {
    throw RendezvousError(
        fmt::format("MASTER_ADDR {}: no route to it: {}", host, std::strerror(errno)));
  }
  if (is_loopback(address)) {
    throw RendezvousError(
        fmt::format("MASTER_ADDR {} is {} here, which the other hosts cannot reach; give an "
                    "address of rank 0's network interface",
                    host, address));
  }
  return address;
}

std::string interface_with(const std::string& address) {
  for (const InterfaceAddress& one : interface_addresses()) {
    if (one.text() == address) return one.name;
  }
  return {};
}

}  // namespace dstrain
