// TCP sockets with an owner and a deadline: what the store's two ends stand on. Everything here is
// non-blocking and close-on-exec; a wait ends at a deadline.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

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

/// All of `bytes`, or std::runtime_error: closed by the peer, or past the deadline.
void send_all(const Fd& socket, std::string_view bytes, Clock::time_point deadline);
std::string receive_exactly(const Fd& socket, std::size_t bytes, Clock::time_point deadline);

}  // namespace dstrain
