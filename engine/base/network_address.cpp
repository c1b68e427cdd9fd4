#include "engine/base/network_address.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <system_error>
#include <utility>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include "engine/base/file_descriptor.h"

namespace dstrain {
namespace {

socklen_t size_of_family(int family) {
  return family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
}

}  // namespace

AddressLookup look_up_addresses(const char* host, std::uint16_t port, int flags, int family) {
  addrinfo hints{};
  hints.ai_family = family;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  AddressLookup lookup;
  const int error = getaddrinfo(host, std::to_string(port).c_str(), &hints, &found);
  if (error == 0) {
    lookup.list.reset(found);
  } else {
    lookup.error =
        error == EAI_SYSTEM ? std::generic_category().message(errno) : gai_strerror(error);
  }
  return lookup;
}

std::string address_text(const sockaddr* address, socklen_t size) {
  std::array<char, NI_MAXHOST> text{};
  const int error =
      getnameinfo(address, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  return error == 0 ? text.data() : "";
}

// Connecting a datagram socket sends nothing; it only picks the route and with it the address. Any
// port but 0 will do.
std::string own_address_towards(const AddressLookup& towards) {
  constexpr in_port_t kDiscard = 9;
  sockaddr_storage there{};
  std::memcpy(&there, towards.list->ai_addr, towards.list->ai_addrlen);
  // sin_port and sin6_port are at the same place.
  reinterpret_cast<sockaddr_in*>(&there)->sin_port = htons(kDiscard);
  const FileDescriptor fd(socket(there.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  auto* const generic = reinterpret_cast<sockaddr*>(&own);
  if (!fd ||
      connect(fd.get(), reinterpret_cast<const sockaddr*>(&there), towards.list->ai_addrlen) != 0 ||
      getsockname(fd.get(), generic, &size) != 0) {
    return {};
  }
  return address_text(generic, size);
}

std::string InterfaceAddress::text() const {
  return address_text(get(), size_of_family(address.ss_family));
}

std::vector<InterfaceAddress> interface_addresses() {
  std::vector<InterfaceAddress> addresses;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return addresses;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> interfaces(list, freeifaddrs);
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
      if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != family) continue;
      InterfaceAddress& one = addresses.emplace_back();
      one.name = i->ifa_name;
      one.is_up = (i->ifa_flags & IFF_UP) != 0;
      std::memcpy(&one.address, i->ifa_addr, size_of_family(family));
    }
  }
  return addresses;
}

bool is_loopback(const sockaddr* address) {
  constexpr std::uint32_t kLoopbackNet = 127;
  if (address->sa_family == AF_INET) {
    const in_addr v4 = reinterpret_cast<const sockaddr_in*>(address)->sin_addr;
    return ntohl(v4.s_addr) >> 24 == kLoopbackNet;
  }
  return address->sa_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

bool is_loopback(std::string_view address) {
  return address.starts_with("127.") || address == "::1";
}

std::optional<HostAndPort> parse_host_and_port(std::string_view text) {
  HostAndPort parsed;
  std::size_t end = text.size();  // of the host, with its brackets
  if (text.starts_with('[')) {
    end = text.find(']') + 1;
    if (end == 0 || (end < text.size() && text[end] != ':')) return std::nullopt;
  } else if (std::count(text.begin(), text.end(), ':') == 1) {
    end = text.find(':');
  }
  if (end < text.size()) {
    const char* const last = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + end + 1, last, parsed.port.emplace());
    if (error != std::errc() || stop != last || *parsed.port == 0) return std::nullopt;
  }
  parsed.host = text.starts_with('[') ? text.substr(1, end - 2) : text.substr(0, end);
  return parsed.host.empty() ? std::nullopt : std::optional(std::move(parsed));
}

std::string host_and_port(std::string_view host, std::uint16_t port) {
  const bool is_ipv6 = host.find(':') != std::string_view::npos;
  return fmt::format(fmt::runtime(is_ipv6 ? "[{}]:{}" : "{}:{}"), host, port);
}

void end_when_silent(int socket, std::chrono::milliseconds limit) {
  const auto limit_ms = static_cast<unsigned>(limit.count());
  const int probe_seconds = std::max(1, static_cast<int>(limit.count() / 5000));
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit_ms, sizeof limit_ms);
  setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &probe_seconds, sizeof probe_seconds);
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &probe_seconds, sizeof probe_seconds);
}

}  // namespace dstrain
