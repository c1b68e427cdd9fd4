// PeerChannels: what leads from one member of a group to one other and back, over a socket, or over
// shared memory with the socket as a bell. Never waits.
//
//   window  segments that the receiver uses in place and releases in order: for heads of operations
//           and for parts of a reduction. Through a socket they land in a ring at the receiver,
//           which gives credit back. In shared memory (shared_link.h) a released segment goes back
//           to its sender, with what the receiver has written into it.
//   direct  straight into the receiver's tensor, which it has opened before it sent its head.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/comm/peer_link.h"
#include "engine/comm/peer_meeting.h"
#include "engine/comm/shared_link.h"

namespace dstrain {

/// kWindow, or the n-th direct channel.
enum class Channel : std::uint32_t { kWindow = 0, kDirect = 1 };
inline Channel direct_channel(int index) {
  return Channel{static_cast<std::uint32_t>(Channel::kDirect) + static_cast<std::uint32_t>(index)};
}

class PeerChannels final : public FrameSink {
 public:
  /// Segments in flight to one peer: the window's, and in shared memory those of both channels.
  static constexpr std::int64_t kSegments = 8;
  static_assert(SharedLink::kSlots * SharedLink::kRings == kSegments);

  PeerChannels(MetPeer met, std::unique_ptr<SharedLink> shared, std::int64_t segment_bytes);

  // Outwards.
  [[nodiscard]] bool has_room(Channel channel) const;
  /// Sends `bytes`, at most a segment; needs room. `left` is counted down by one when they may
  /// change. `offset` is the place in what the peer has opened, or 0.
  void send(Channel channel,
            const void* data,
            std::int64_t bytes,
            std::int64_t offset,
            std::int64_t* left);
  /// The same through the window to a peer that returns_segments(); once it has, `data` is
  /// overwritten with the segment, and `left` counted down.
  void send_for_return(void* data, std::int64_t bytes, std::int64_t* left);
  void send_goodbye();
  /// Whether a released segment goes back.
  [[nodiscard]] bool returns_segments() const { return shared_ != nullptr; }
  /// Whether the socket has yet to take something.
  [[nodiscard]] bool has_pending() const { return wire_.has_pending(); }

  // Inwards.
  /// Opens `bytes` of memory to `pieces` that the peer will send directly.
  void open(Channel channel, std::byte* data, std::int64_t bytes, std::int64_t pieces);
  /// Pieces that a direct channel still waits for.
  [[nodiscard]] std::int64_t missing(Channel channel) const;
  [[nodiscard]] std::int64_t in_window() const;
  /// The next segment of the window; it is valid, and may be written to, until it is released.
  std::byte* take();
  void release();
  /// The same for a segment that has been overwritten, which its sender gets back.
  void give_back();
  [[nodiscard]] bool has_left() const { return has_left_; }

  /// Moves what can be moved: outwards, and both ways. False if there was nothing. Throws PeerLost
  /// or FrameRefused with the reason if the connection has failed or ended without a goodbye.
  void push();
  bool move();
  /// Before a sleep in epoll: see SharedLink::set_asleep().
  void set_asleep(bool asleep);

  [[nodiscard]] const FileDescriptor& socket() const { return wire_.socket(); }
  void note(std::uint32_t events) { wire_.note(events); }
  void shut_down() noexcept { wire_.shut_down(); }

  std::byte* place_for(const FrameHeader& header) override;
  void arrived(const FrameHeader& header) override;

 private:
  struct Opened {
    std::byte* data = nullptr;
    std::int64_t bytes = 0;
    std::int64_t missing = 0;
  };

  bool move_shared();
  void ring_if_asleep();

  const std::int64_t segment_bytes_;
  std::vector<std::byte> window_;  ///< empty where memory is shared
  std::vector<Opened> open_;       ///< by direct channel
  // Counts of segments through a socket's window.
  std::int64_t sent_ = 0;
  std::int64_t may_send_ = kSegments;
  std::int64_t arrived_ = 0;
  std::int64_t taken_ = 0;
  std::int64_t released_ = 0;
  bool has_left_ = false;
  std::byte nothing_{};  ///< where payloads of no bytes go
  std::unique_ptr<SharedLink> shared_;
  PeerLink wire_;  // last: it reads into the others
};

}  // namespace dstrain
