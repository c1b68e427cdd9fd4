#include "launcher/ssh/ssh_session.h"

#include <cctype>
#include <cerrno>
#include <new>
#include <system_error>

#include <fmt/format.h>
#include <sys/socket.h>

#include "engine/base/network_address.h"

namespace dstrain::launcher {

SshSession::SshSession(asio::ip::tcp::socket socket) : socket_(std::move(socket)) {
  socket_.non_blocking(true);
  asio::error_code ignored;
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  session_ = libssh2_session_init_ex(nullptr, nullptr, nullptr, this);
  if (session_ == nullptr) throw std::bad_alloc();
  libssh2_session_set_blocking(session_, 0);
  libssh2_session_callback_set(session_, LIBSSH2_CALLBACK_RECV,
                               reinterpret_cast<void*>(&SshSession::receive));
  libssh2_session_callback_set(session_, LIBSSH2_CALLBACK_SEND,
                               reinterpret_cast<void*>(&SshSession::send));
}

SshSession::~SshSession() {
  // Once there is no connection, freeing does not try to say goodbye to each channel, and cannot be
  // told to try again.
  ::shutdown(socket_.native_handle(), SHUT_RDWR);
  constexpr int kTries = 1000;
  for (int i = 0; i < kTries && libssh2_session_free(session_) == LIBSSH2_ERROR_EAGAIN; ++i) {
  }
}

void SshSession::limit_silence(std::chrono::milliseconds limit) {
  silence_limit_ = limit;
  // libssh2's own keep-alive would not notice a missing answer.
  end_when_silent(socket(), limit);
}

bool SshSession::wants_to_send() const {
  return (libssh2_session_block_directions(session_) & LIBSSH2_SESSION_BLOCK_OUTBOUND) != 0;
}

void SshSession::wait() {
  const auto arm = [this](bool& waits, asio::ip::tcp::socket::wait_type type) {
    if (waits) return;
    waits = true;
    socket_.async_wait(type, [this, &waits, alive = std::weak_ptr<const int>(alive_)](
                                 const asio::error_code& error) {
      if (alive.expired() || error == asio::error::operation_aborted) return;
      waits = false;
      const auto ready = ready_;  // which may end this object
      if (ready) ready();
    });
  };
  arm(waits_to_read_, asio::ip::tcp::socket::wait_read);
  if (wants_to_send()) arm(waits_to_write_, asio::ip::tcp::socket::wait_write);
}

ssize_t SshSession::receive(int socket, void* buffer, size_t size, int flags, void** self) {
  auto& session = *static_cast<SshSession*>(*self);
  const ssize_t received = recv(socket, buffer, size, flags | MSG_NOSIGNAL);
  if (received > 0) session.received_bytes_ += received;
  if (received == 0) session.at_end_ = true;
  if (received >= 0) return received;
  if (errno != EAGAIN && errno != EINTR) session.error_ = errno;
  return -errno;
}

ssize_t SshSession::send(int socket, const void* buffer, size_t size, int flags, void** self) {
  auto& session = *static_cast<SshSession*>(*self);
  const ssize_t sent = ::send(socket, buffer, size, flags | MSG_NOSIGNAL);
  if (sent >= 0) return sent;
  // A broken pipe says less than the reason why the other direction ended.
  if (errno != EAGAIN && errno != EINTR && session.error_ == 0) session.error_ = errno;
  return -errno;
}

std::string SshSession::why() const {
  if (error_ == ETIMEDOUT && silence_limit_.count() > 0) {
    return fmt::format("no answer for {:.3g} s",
                       std::chrono::duration<double>(silence_limit_).count());
  }
  if (error_ != 0 && error_ != EPIPE) {
    std::string message = std::generic_category().message(error_);
    message[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(message[0])));
    return message;
  }
  if (at_end_ || error_ == EPIPE) return "the host closed the connection";
  char* message = nullptr;
  libssh2_session_last_error(session_, &message, nullptr, 0);
  return fmt::format("libssh2: {}", message);
}

}  // namespace dstrain::launcher
