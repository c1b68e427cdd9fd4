#include "launcher/hosts/local_host.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <strings.h>
#include <unistd.h>

#include "engine/base/file_descriptor.h"
#include "engine/base/network_address.h"

namespace dstrain::launcher {
namespace {

namespace fs = std::filesystem;

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return a.size() == b.size() && strncasecmp(a.data(), b.data(), a.size()) == 0;
}

const in6_addr& ipv6(const sockaddr* address) {
  return reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
}

bool same_address(const sockaddr* a, const sockaddr* b) {
  if (a->sa_family != b->sa_family) return false;
  if (a->sa_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(a)->sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in*>(b)->sin_addr.s_addr;
  }
  return a->sa_family == AF_INET6 && IN6_ARE_ADDR_EQUAL(&ipv6(a), &ipv6(b));
}

}  // namespace

std::string program_in_path(const std::string& name) {
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    std::string program = folder + "/" + name;
    if (access(program.c_str(), X_OK) == 0) return program;
  }
  return {};
}

std::string own_hostname() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "localhost";
}

bool is_this_machine(std::string_view host) {
  if (equal_ignoring_case(host, "localhost") || equal_ignoring_case(host, own_hostname())) {
    return true;
  }
  const AddressLookup given = look_up_addresses(std::string(host).c_str(), 0, AI_NUMERICHOST);
  if (!given) return false;
  if (is_loopback(given.list->ai_addr)) return true;
  const std::vector<InterfaceAddress> own = interface_addresses();
  return std::any_of(own.begin(), own.end(), [&](const InterfaceAddress& one) {
    return same_address(one.get(), given.list->ai_addr);
  });
}

std::vector<std::string> own_addresses() {
  std::vector<std::string> addresses;
  for (const InterfaceAddress& one : interface_addresses()) {
    const bool is_link_local =
        one.address.ss_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&ipv6(one.get()));
    if (one.is_up && !is_loopback(one.get()) && !is_link_local) addresses.push_back(one.text());
  }
  return addresses;
}

namespace {

/// Binds a new socket to `address`:`port` and listens. Throws std::system_error.
Listener try_to_listen(const std::string& address, std::uint16_t port) {
  const AddressLookup found = look_up_addresses(address.c_str(), port, AI_PASSIVE);
  if (!found) throw PreflightError(fmt::format("address {}: {}", address, found.error));
  sockaddr_storage where{};
  std::memcpy(&where, found.list->ai_addr, found.list->ai_addrlen);

  FileDescriptor fd(socket(where.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  socklen_t size = found.list->ai_addrlen;
  auto* const generic = reinterpret_cast<sockaddr*>(&where);
  if (!fd || bind(fd.get(), generic, size) != 0 || listen(fd.get(), SOMAXCONN) != 0 ||
      getsockname(fd.get(), generic, &size) != 0) {
    throw std::system_error(errno, std::generic_category());
  }
  // sin_port and sin6_port are at the same place.
  return {std::move(fd), ntohs(reinterpret_cast<sockaddr_in*>(&where)->sin_port)};
}

/// The inode of a socket that listens on `port`, from /proc/net/tcp's columns "sl local_address
/// rem_address st tx:rx tr:when retrnsmt uid timeout inode".
std::optional<std::string> listening_inode(const char* table, std::uint16_t port) {
  constexpr std::string_view kListening = "0A";
  std::ifstream file(table);
  std::string line;
  std::getline(file, line);  // headings
  const std::string port_suffix = fmt::format(":{:04X}", port);
  while (std::getline(file, line)) {
    std::istringstream columns(line);
    std::string slot, local, remote, state, queues, timer, retransmits, user, timeout, inode;
    columns >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> user >>
        timeout >> inode;
    if (state == kListening && local.ends_with(port_suffix)) return inode;
  }
  return std::nullopt;
}

/// " by pid 123 (python3)", or empty where /proc does not show it.
std::string holder_of(std::uint16_t port) {
  std::optional<std::string> inode = listening_inode("/proc/net/tcp", port);
  if (!inode) inode = listening_inode("/proc/net/tcp6", port);
  if (!inode) return {};
  const std::string socket_link = fmt::format("socket:[{}]", *inode);
  std::error_code error;  // processes vanish, and those of others are closed to us
  for (const auto& process : fs::directory_iterator("/proc", error)) {
    const std::string pid = process.path().filename();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    std::error_code closed;
    for (fs::directory_iterator fd(process.path() / "fd", closed), end; !closed && fd != end;
         fd.increment(closed)) {
      std::error_code gone;
      if (fs::read_symlink(fd->path(), gone) != socket_link) continue;
      std::string name;
      std::getline(std::ifstream(process.path() / "comm"), name);
      return fmt::format(" by pid {} ({})", pid, name);
    }
  }
  return {};
}

}  // namespace

Listener listen_on(const std::string& address, std::uint16_t port) {
  try {
    return try_to_listen(address, port);
  } catch (const std::system_error& error) {
    if (port == 0) {
      throw PreflightError(
          fmt::format("cannot listen on any port of {}: {}", address, error.code().message()));
    }
    if (error.code() == std::errc::address_in_use) {
      throw PreflightError(fmt::format(
          "port {} of {} is in use{}; give another --master_port, or none to have one chosen", port,
          address, holder_of(port)));
    }
    throw PreflightError(
        fmt::format("cannot listen on port {} of {}: {}", port, address, error.code().message()));
  }
}

std::vector<int> share_of_cores(const std::vector<int>& cores, int index, int count) {
  const auto total = static_cast<int>(cores.size());
  if (total == 0) return {};
  if (count > total) return {cores[static_cast<size_t>(index % total)]};
  // Truncation spreads the remainder over the shares.
  const auto first = [&](int share) {
    return cores.begin() + static_cast<std::ptrdiff_t>(std::int64_t{share} * total / count);
  };
  return {first(index), first(index + 1)};
}

}  // namespace dstrain::launcher
