// SshSession: one TCP connection with libssh2's session on it, in the event loop. It owns both,
// waits for what libssh2 waits for, and remembers why the connection broke (libssh2 does not).
//
// Rule of libssh2's non-blocking calls: one that could not send all of its packet has to be called
// again, as it was, before any other call that may send. wants_to_send() tells.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <asio.hpp>
#include <libssh2.h>

namespace dstrain::launcher {

class SshSession {
 public:
  /// Takes a connected socket.
  explicit SshSession(asio::ip::tcp::socket socket);
  SshSession(const SshSession&) = delete;
  SshSession& operator=(const SshSession&) = delete;
  /// Closes the connection at once.
  ~SshSession();

  [[nodiscard]] LIBSSH2_SESSION* get() const { return session_; }
  [[nodiscard]] int socket() { return socket_.native_handle(); }

  /// The function to call, from the event loop, when the socket is ready.
  void on_ready(std::function<void()> ready) { ready_ = std::move(ready); }
  /// Calls `ready` once the socket can be read, or written if libssh2 wants to.
  void wait();
  [[nodiscard]] bool wants_to_send() const;

  [[nodiscard]] bool has_received() const { return received_bytes_ > 0; }
  /// Bytes received since the connection was made.
  [[nodiscard]] std::int64_t received_bytes() const { return received_bytes_; }
  /// The reason of the error that a call of libssh2 just returned, as a clause.
  [[nodiscard]] std::string why() const;
  /// The time for which the peer may be silent before the kernel gives the connection up; used by
  /// why().
  void limit_silence(std::chrono::milliseconds limit);

 private:
  static ssize_t receive(int socket, void* buffer, size_t size, int flags, void** self);
  static ssize_t send(int socket, const void* buffer, size_t size, int flags, void** self);

  asio::ip::tcp::socket socket_;
  LIBSSH2_SESSION* session_ = nullptr;
  std::function<void()> ready_;
  bool waits_to_read_ = false;
  bool waits_to_write_ = false;
  std::int64_t received_bytes_ = 0;
  bool at_end_ = false;
  int error_ = 0;  ///< errno of the socket
  std::chrono::milliseconds silence_limit_{0};
  /// Owned by this object alone; handlers hold weak pointers to it.
  std::shared_ptr<const int> alive_ = std::make_shared<const int>(0);
};

}  // namespace dstrain::launcher
