// PeerLink: a connected socket to another member of a group, with what has to go out and what is
// coming in. Never waits: it moves what the socket takes and gives at once.
#pragma once

#include <cstdint>

#include "engine/comm/link_frames.h"
#include "engine/comm/socket.h"

namespace dstrain {

class PeerLink {
 public:
  /// `socket` does not block.
  PeerLink(FileDescriptor socket, FrameReader reader, FrameWriter writer);

  [[nodiscard]] const FileDescriptor& socket() const { return socket_; }
  [[nodiscard]] bool has_pending() const { return !writer_.empty(); }
  /// Whether the connection has ended, at either end.
  [[nodiscard]] bool closed() const { return closed_; }

  /// Queues a frame, and sends what can be sent.
  void send(const FrameHeader& header, const void* payload, std::int64_t* left);
  /// Takes what epoll, edge-triggered, has reported.
  void note(std::uint32_t events);
  /// Moves some bytes each way, where there are any to move. False if there were none. Throws
  /// PeerLost with the reason if the connection has failed; the end of a closed one is no failure.
  bool move();
  /// Moves bytes outwards only.
  void push();
  /// Closes the connection for its peer. May be called from any thread.
  void shut_down() noexcept;

 private:
  bool pull();

  FileDescriptor socket_;
  FrameReader reader_;
  FrameWriter writer_;
  bool readable_ = false;
  bool writable_ = true;
  bool ended_ = false;  ///< no more comes after what is there
  bool closed_ = false;
};

}  // namespace dstrain
