#include "engine/comm/socket.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <system_error>
#include <utility>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "engine/base/network_address.h"

namespace dstrain {
namespace {

std::string reason(int error) {
  return std::generic_category().message(error);
}

AddressLookup resolve(const std::string& host, std::uint16_t port, int flags) {
  AddressLookup found = look_up_addresses(host.empty() ? nullptr : host.c_str(), port, flags);
  if (!found) {
    throw std::runtime_error(fmt::format("cannot resolve host \"{}\": {}", host, found.error));
  }
  return found;
}

FileDescriptor open_socket(const addrinfo& address) {
  return FileDescriptor(socket(
      address.ai_family, address.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, address.ai_protocol));
}

void set_option(const FileDescriptor& socket, int level, int option, int value) {
  setsockopt(socket.get(), level, option, &value, sizeof value);
}

// Makes small answers leave at once, and lets not only a dead process but also a lost host (power,
// cable) be noticed within about ten seconds.
void prepare(const FileDescriptor& socket) {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 4);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 2);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 3);
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, 10'000);
}

/// Returns false at the deadline.
bool wait_for(const FileDescriptor& socket, short events, Clock::time_point deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd entry{.fd = socket.get(), .events = events, .revents = 0};
    const int ready = poll(&entry, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, INT_MAX)));
    if (ready > 0) {
      return true;
    }
    if (ready == 0 && left <= INT_MAX) {
      return false;
    }
    if (ready < 0 && errno != EINTR) {
      throw std::runtime_error("poll: " + reason(errno));
    }
  }
}

}  // namespace

PortInUse::PortInUse(std::string host, std::uint16_t port)
    : std::runtime_error(fmt::format(
          "port {} on {} is in use by another program: choose another port, or 0 for any free one",
          port,
          host.empty() ? "this machine" : host)),
      host_(std::move(host)),
      port_(port) {}

FileDescriptor listen_on(const std::string& host, std::uint16_t port) {
  const AddressLookup addresses = resolve(host, port, AI_PASSIVE);
  int error = 0;
  for (const addrinfo* address = addresses.list.get(); address != nullptr;
       address = address->ai_next) {
    FileDescriptor socket = open_socket(*address);
    if (!socket) {
      error = errno;
      continue;
    }
    set_option(socket, SOL_SOCKET, SO_REUSEADDR, 1);
    if (bind(socket.get(), address->ai_addr, address->ai_addrlen) == 0 &&
        listen(socket.get(), SOMAXCONN) == 0) {
      return socket;
    }
    error = errno;
    if (error == EADDRINUSE) {
      throw PortInUse(host, port);
    }
  }
  throw std::runtime_error(fmt::format(
      "cannot listen on {}:{}: {}", host.empty() ? "every interface" : host, port, reason(error)));
}

FileDescriptor accept_from(const FileDescriptor& listener) {
  FileDescriptor socket(accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (socket) {
    prepare(socket);
  }
  return socket;
}

std::uint16_t port_of(const FileDescriptor& socket) {
  const sockaddr_storage address = address_of(socket);
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

std::pair<std::string, std::string> peer_of(const FileDescriptor& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  char host[NI_MAXHOST] = "?";
  char service[NI_MAXSERV] = "?";
  if (getpeername(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0) {
    getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, host, sizeof host, service,
                sizeof service, NI_NUMERICHOST | NI_NUMERICSERV);
  }
  return {fmt::format("{}:{}", host, service), host};
}

FileDescriptor connect_to(const std::string& host, std::uint16_t port, Clock::time_point deadline) {
  const AddressLookup addresses = resolve(host, port, 0);
  std::string last = "no address";
  for (const addrinfo* address = addresses.list.get(); address != nullptr;
       address = address->ai_next) {
    FileDescriptor socket = open_socket(*address);
    int error = socket ? 0 : errno;
    if (error == 0 && connect(socket.get(), address->ai_addr, address->ai_addrlen) != 0) {
      error = errno;
      if (error == EINPROGRESS) {
        socklen_t length = sizeof error;
        error = ETIMEDOUT;
        if (wait_for(socket, POLLOUT, deadline)) {
          getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
        }
      }
    }
    if (error == 0) {
      prepare(socket);
      return socket;
    }
    last = reason(error);
  }
  throw std::runtime_error(last);
}

FileDescriptor start_connecting(const sockaddr_storage& address) {
  FileDescriptor connection(
      socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const socklen_t length =
      address.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  if (connection &&
      connect(connection.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 &&
      errno != EINPROGRESS) {
    const int error = errno;
    connection = FileDescriptor();
    errno = error;
  }
  return connection;
}

int error_of(const FileDescriptor& socket) {
  int error = 0;
  socklen_t length = sizeof error;
  return getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
}

sockaddr_storage address_of(const FileDescriptor& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length);
  return address;
}

namespace {

std::pair<sockaddr_un, socklen_t> abstract_address(std::string_view name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::size_t bytes = std::min(name.size(), sizeof address.sun_path - 1);
  std::memcpy(address.sun_path + 1, name.data(), bytes);  // behind a zero: abstract
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + bytes)};
}

FileDescriptor open_unix_socket() {
  return FileDescriptor(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

}  // namespace

FileDescriptor listen_on_abstract(std::string_view name) {
  FileDescriptor socket = open_unix_socket();
  const auto [address, length] = abstract_address(name);
  if (!socket || bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      listen(socket.get(), SOMAXCONN) != 0) {
    throw std::runtime_error("cannot listen on a Unix socket: " + reason(errno));
  }
  return socket;
}

FileDescriptor connect_to_abstract(std::string_view name) {
  FileDescriptor socket = open_unix_socket();
  const auto [address, length] = abstract_address(name);
  if (socket && connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    const int error = errno;
    socket = FileDescriptor();
    errno = error;
  }
  return socket;
}

bool is_of_this_user(const FileDescriptor& socket) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  return getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &length) == 0 &&
         credentials.uid == geteuid();
}

// A Unix socket's buffer has the size that it is given; TCP grows its own with what a connection
// needs. TCP_USER_TIMEOUT would also end a connection whose peer is alive and takes nothing for ten
// seconds: a rank that computes.
void prepare_for_bulk(const FileDescriptor& socket) {
  constexpr int kUnixBuffer = 1 << 20;
  int domain = AF_UNIX;
  socklen_t length = sizeof domain;
  getsockopt(socket.get(), SOL_SOCKET, SO_DOMAIN, &domain, &length);
  if (domain == AF_UNIX) {
    set_option(socket, SOL_SOCKET, SO_SNDBUF, kUnixBuffer);
  } else {
    prepare(socket);
    set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, 0);
  }
}

std::size_t raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return 1024;
  }
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);
  (void)getrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur;
}

void send_all(const FileDescriptor& socket, std::string_view bytes, Clock::time_point deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN) {
      if (!wait_for(socket, POLLOUT, deadline)) {
        throw std::runtime_error("the deadline passed while sending");
      }
    } else if (errno != EINTR) {
      throw std::runtime_error(reason(errno));
    }
  }
}

std::string receive_exactly(const FileDescriptor& socket,
                            std::size_t bytes,
                            Clock::time_point deadline) {
  std::string received(bytes, '\0');
  std::size_t count = 0;
  while (count < bytes) {
    const ssize_t got = recv(socket.get(), received.data() + count, bytes - count, 0);
    if (got > 0) {
      count += static_cast<std::size_t>(got);
    } else if (got == 0) {
      throw std::runtime_error("the connection was closed");
    } else if (errno == EAGAIN) {
      if (!wait_for(socket, POLLIN, deadline)) {
        throw std::runtime_error("the deadline passed without an answer");
      }
    } else if (errno != EINTR) {
      throw std::runtime_error(reason(errno));
    }
  }
  return received;
}

}  // namespace dstrain
