#include "cmd/rank/own_address.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>

#include <fmt/format.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "cmd/exit_codes.h"
#include "launcher/process/file_descriptor.h"

namespace dstrain {

std::string own_address_towards(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) {
    throw RendezvousError(fmt::format("MASTER_ADDR {}: {}", host, gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(found, freeaddrinfo);

  // Connecting a datagram socket sends nothing; it only picks the route and with it the address.
  const launcher::FileDescriptor fd(socket(list->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  std::array<char, NI_MAXHOST> text{};
  if (!fd || connect(fd.get(), list->ai_addr, list->ai_addrlen) != 0 ||
      getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&own), size, text.data(), text.size(), nullptr, 0,
                  NI_NUMERICHOST) != 0) {
    throw RendezvousError(
        fmt::format("MASTER_ADDR {}: no way to it: {}", host, std::strerror(errno)));
  }
  const std::string_view address(text.data());
  if (address.starts_with("127.") || address == "::1") {
    throw RendezvousError(
        fmt::format("MASTER_ADDR {} is {} here, which the other hosts cannot reach; give an "
                    "address of rank 0's "
                    "network interface",
                    host, address));
  }
  return std::string(address);
}

std::string interface_with(const std::string& address) {
  ifaddrs* found = nullptr;
  if (getifaddrs(&found) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> list(found, freeifaddrs);
  for (const ifaddrs* entry = list.get(); entry != nullptr; entry = entry->ifa_next) {
    const int family = entry->ifa_addr == nullptr ? AF_UNSPEC : entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const auto size =
        static_cast<socklen_t>(family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    std::array<char, NI_MAXHOST> text{};
    if (getnameinfo(entry->ifa_addr, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) ==
            0 &&
        address == text.data()) {
      return entry->ifa_name;
    }
  }
  return {};
}

}  // namespace dstrain
