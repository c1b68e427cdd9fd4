#include "engine/comm/peer_link.h"

#include <cerrno>
#include <system_error>
#include <utility>

#include <sys/epoll.h>
#include <sys/socket.h>

#include "engine/comm/communicator.h"

namespace dstrain {
namespace {

std::string reason(int error) {
  return std::generic_category().message(error);
}

std::size_t bytes_of(std::span<const iovec> parts) {
  std::size_t bytes = 0;
  for (const iovec& part : parts) {
    bytes += part.iov_len;
  }
  return bytes;
}

}  // namespace

PeerLink::PeerLink(FileDescriptor socket, FrameReader reader, FrameWriter writer)
    : socket_(std::move(socket)), reader_(std::move(reader)), writer_(std::move(writer)) {}

void PeerLink::send(const FrameHeader& header, const void* payload, std::int64_t* left) {
  writer_.add(header, payload, left);
  push();
}

void PeerLink::note(std::uint32_t events) {
  ended_ = ended_ || (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
  readable_ = readable_ || ended_ || (events & EPOLLIN) != 0;
  writable_ = writable_ || (events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0;
}

bool PeerLink::move() {
  bool moved = false;
  if (readable_ && !closed_) {
    moved = pull();
  }
  if (writable_ && has_pending()) {
    push();
    moved = true;
  }
  return moved;
}

// A socket that takes no more data is not a failure here: what its peer sent last is still to be
// read, and after it comes the end of the stream, or the reason.
void PeerLink::push() {
  while (writable_ && has_pending()) {
    auto parts = writer_.next();
    const msghdr message{.msg_name = nullptr,
                         .msg_namelen = 0,
                         .msg_iov = parts.data(),
                         .msg_iovlen = parts.size(),
                         .msg_control = nullptr,
                         .msg_controllen = 0,
                         .msg_flags = 0};
    const ssize_t sent = sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      writable_ = static_cast<std::size_t>(sent) == bytes_of(parts);
      writer_.sent(static_cast<std::size_t>(sent));
    } else if (errno != EINTR) {
      writable_ = false;
      ended_ = ended_ || errno != EAGAIN;
      readable_ = readable_ || ended_;
    }
  }
}

bool PeerLink::pull() {
  auto room = reader_.room();
  msghdr message{};
  message.msg_iov = room.data();
  message.msg_iovlen = room.size();
  const ssize_t got = recvmsg(socket_.get(), &message, MSG_DONTWAIT);
  if (got > 0) {
    readable_ = ended_ || static_cast<std::size_t>(got) == bytes_of(room);
    reader_.took(static_cast<std::size_t>(got));
    return true;
  }
  if (got == 0) {
    closed_ = true;
    return true;
  }
  if (errno == EAGAIN) {
    readable_ = false;
  } else if (errno != EINTR) {
    closed_ = true;
    throw PeerLost(reason(errno));
  }
  return false;
}

void PeerLink::shut_down() noexcept {
  ::shutdown(socket_.get(), SHUT_RDWR);
}

}  // namespace dstrain
