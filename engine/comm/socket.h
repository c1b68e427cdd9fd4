// Sockets with an owner and a deadline: what the store's two ends and the links between ranks stand
// on. Everything here is non-blocking and close-on-exec; a wait ends at a deadline.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include <sys/socket.h>

namespace dstrain {

using Clock = std::chrono::steady_clock;

/// Owns a file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd();
  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] bool valid() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// Listens on `host` ("" for every interface) and `port` (0: the system picks). A port whose last
/// connections are in TIME_WAIT is free. Throws PortInUse (tcp_store.h), or std::runtime_error.
Fd listen_on(const std::string& host, std::uint16_t port);
/// The next connection, ready to use; not valid, with errno set, if there is none now.
Fd accept_from(const Fd& listener);
std::uint16_t port_of(const Fd& socket);
/// "10.0.0.1:4711" and "10.0.0.1" of the other end.
std::pair<std::string, std::string> peer_of(const Fd& socket);

/// One try. Throws std::runtime_error with the system's reason.
Fd connect_to(const std::string& host, std::uint16_t port, Clock::time_point deadline);

/// Begins to connect: done, or failed, when there is room to send (error_of). Not valid, with errno
/// set, if it failed at once.
Fd start_connecting(const sockaddr_storage& address);
int error_of(const Fd& socket);
sockaddr_storage address_of(const Fd& socket);

/// A Unix socket that listens under an abstract name, which no file and no permission goes with;
/// and a try to connect to one. Throws std::runtime_error; the connection is not valid, with errno
/// set, if it cannot be made now.
Fd listen_on_abstract(std::string_view name);
Fd connect_to_abstract(std::string_view name);
/// Whether the other end of a Unix socket was opened by a process of this one's effective user.
bool is_of_this_user(const Fd& socket);

/// For a connection that carries much, and on which a busy peer may read nothing for long.
void prepare_for_bulk(const Fd& socket);

/// Lets this process open as many descriptors as it may: a large job needs one for each connection.
/// Returns how many.
std::size_t raise_descriptor_limit();

/// All of `bytes`, or std::runtime_error: closed by the peer, or past the deadline.
void send_all(const Fd& socket, std::string_view bytes, Clock::time_point deadline);
std::string receive_exactly(const Fd& socket, std::size_t bytes, Clock::time_point deadline);

}  // namespace dstrain
