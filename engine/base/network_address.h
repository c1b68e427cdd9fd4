// Network addresses as this machine sees them: names looked up, addresses and ports as text, its
// interfaces, and the address by which it reaches another machine.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <netdb.h>
#include <sys/socket.h>

namespace dstrain {

/// The addresses of a host, in the resolver's order of preference.
struct AddressLookup {
  std::unique_ptr<addrinfo, void (*)(addrinfo*)> list{nullptr, freeaddrinfo};
  std::string error{};  ///< why there are none, as a clause

  explicit operator bool() const { return list != nullptr; }
};

/// May wait for a name server, unless `flags` (AI_…) has AI_NUMERICHOST. nullptr is any address
/// with AI_PASSIVE, else this machine's loopback; "" is no host at all.
AddressLookup look_up_addresses(const char* host,
                                std::uint16_t port,
                                int flags = 0,
                                int family = AF_UNSPEC);

/// "10.0.0.1", "fe80::1%eth0"; empty where there is no such text.
std::string address_text(const sockaddr* address, socklen_t size);

/// The address with which packets to the first of `towards` leave this machine. Nothing is sent.
/// Empty, with errno set, where there is no route.
std::string own_address_towards(const AddressLookup& towards);

struct InterfaceAddress {
  std::string name{};          ///< of the interface: "eth0"
  sockaddr_storage address{};  ///< AF_INET or AF_INET6
  bool is_up = false;

  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
  /// The address as text, numeric.
  [[nodiscard]] std::string text() const;
};
/// The addresses of this machine's interfaces, IPv4 first; none, with errno set, where the kernel
/// does not list them.
std::vector<InterfaceAddress> interface_addresses();

bool is_loopback(const sockaddr* address);
/// The same for a numeric address.
bool is_loopback(std::string_view address);

/// "w0", "w0:22", "fd00::1", "[fd00::1]:22": several colons without brackets are an IPv6 address
/// and no port.
struct HostAndPort {
  std::string host{};                   ///< without brackets
  std::optional<std::uint16_t> port{};  ///< from 1 to 65535
};
/// Returns nothing where the text has no host, a port that is not a number, or stray brackets.
std::optional<HostAndPort> parse_host_and_port(std::string_view text);
std::string host_and_port(std::string_view host, std::uint16_t port);

/// Makes the kernel end the connection once its other end has been silent for `limit`, though it
/// should have confirmed what was sent, or answered a probe on a quiet connection.
void end_when_silent(int socket, std::chrono::milliseconds limit);

}  // namespace dstrain
