// PeerMesh: carries what the members of one group send each other, over a connected socket for each
// pair.
//
// Two channels lead from each member to each other one:
//   window  a ring of segments at the receiver, who uses them in place and gives credit back as it
//           releases them: for heads of operations and for parts of a reduction.
//   direct  straight into the receiver's tensor, which it has opened before it sent its head.
//
// No thread is dedicated to moving bytes: a caller that waits for one peer moves what there is to
// move on every link of the group, both ways, so that no two members ever wait for each other's
// reading. Must not be used by several threads at once, except for abort(). Waits throw PeerLost or
// Timeout.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/comm/call.h"
#include "engine/comm/peer_meeting.h"
#include "engine/comm/socket.h"
#include "engine/comm/store.h"

namespace dstrain {

class PeerMesh {
 public:
  /// The number of window segments that may be sent ahead of what the peer, doing the same, has
  /// released.
  static constexpr std::int64_t kLookAhead = 3;
  /// The size of the header that begins each operation, alone or with a small payload after it.
  static constexpr std::int64_t kHeaderBytes = 64;
  static constexpr std::int64_t kPayloadBytes = 16 << 10;

  /// `timeout` is the deadline of a wait.
  PeerMesh(PeerGroup group, std::chrono::milliseconds timeout);
  ~PeerMesh();
  PeerMesh(const PeerMesh&) = delete;
  PeerMesh& operator=(const PeerMesh&) = delete;

  /// Meets the others in `store` and connects to each (peer_meeting.h). Nothing else works before
  /// it.
  void connect(const WireOptions& options, Store& store, std::chrono::milliseconds timeout);

  [[nodiscard]] int rank() const { return group_.rank; }
  [[nodiscard]] int size() const { return group_.size(); }
  [[nodiscard]] const PeerGroup& group() const { return group_; }
  [[nodiscard]] std::int64_t segment_bytes() const { return segment_bytes_; }
  /// The memory that a mesh of `members` takes on each of them, beside the tensors it works on.
  [[nodiscard]] static std::int64_t buffer_bytes(int members, WireSecurity security);
  /// The others, beginning with the next one: so that not everybody sends to rank 0 first.
  [[nodiscard]] const std::vector<int>& peers() const { return peers_; }

  /// The channel that a tensor is sent through: kWindow, or the n-th direct channel.
  enum class Channel : std::uint32_t { kWindow = 0, kDirect = 1 };
  static Channel direct(int index) {
    return Channel{static_cast<std::uint32_t>(Channel::kDirect) +
                   static_cast<std::uint32_t>(index)};
  }

  /// Memory that is being sent from. If it goes unfinished, in an exception, it aborts the mesh.
  class Outgoing {
   public:
    Outgoing(PeerMesh& mesh, const void* data, Channel channel);
    Outgoing(Outgoing&&) = default;
    ~Outgoing();
    /// Sends bytes [offset, offset + bytes), at most segment_bytes(), to `peer`. Waits for credit
    /// where the channel needs it, not for delivery. On a direct channel they land at `offset`
    /// there too.
    void send(int peer, std::int64_t offset, std::int64_t bytes);
    /// Waits until all of it has left.
    void finish();

   private:
    PeerMesh& mesh_;
    const std::byte* data_;
    Channel channel_;
    std::vector<std::int64_t> unfinished_;  ///< pieces, by peer
  };

  /// Memory that peers send into, on one direct channel. Aborts the mesh if it goes unfinished.
  class Incoming {
   public:
    Incoming(PeerMesh& mesh, void* data, std::int64_t bytes, Channel channel);
    Incoming(Incoming&&) = default;
    ~Incoming();
    /// Opens it to `peer`, who will send `messages` pieces.
    void open(int peer, std::int64_t messages);
    /// Waits until the next piece from `peer` is there.
    void wait_one(int peer);
    /// Waits until everything is there.
    void finish();

   private:
    PeerMesh& mesh_;
    std::byte* data_;
    std::int64_t bytes_;
    Channel channel_;
    std::vector<std::int64_t> expected_;  ///< pieces that nobody has waited for, by peer
  };

  /// Prepares the head of an operation, with `payload` after it, for one peer or for all.
  void stage(const Call& call, std::span<const std::byte> payload = {});
  void send_head(int peer);
  void send_head_to_all();
  /// Waits for the peer's head and compares it; the payload stays valid until release().
  const std::byte* receive_head(int peer, const Call& expected);
  void receive_head_from_all(const Call& expected);
  /// Waits until the staged head may be overwritten, and nothing else is left to send.
  void finish_heads();

  /// Waits for the next window segment from `peer`, which is valid until release(). Segments are
  /// released in order.
  const std::byte* receive(int peer);
  void release(int peer);

  /// Tells the others that this member leaves; returns once they leave too or something failed.
  void send_goodbye();
  void await_goodbyes();

  /// Closes every connection: pending and later calls of all members fail. May be called from any
  /// thread.
  void abort() noexcept;
  /// Seconds since this was last called that this member waited for bytes from or to `peer`, once
  /// that one had begun to take part.
  double take_transfer_wait(int peer);
  /// The peer that was waited for last, or that failed.
  [[nodiscard]] int last_peer() const { return last_peer_; }

 private:
  class Link;
  Link& link(int peer) { return *links_[static_cast<std::size_t>(peer)]; }
  std::int64_t next_place(int peer);
  /// Says whether a wait is for the peer to take part, or for bytes to move.
  enum class Wait : std::uint8_t { kArrival, kBytes };
  template <typename Done>
  void wait_for(int peer, Wait what, const Done& done);
  const std::byte* receive(int peer, Wait what);
  bool move_bytes();
  void take_events(int milliseconds);
  void check_not_aborted() const;

  const PeerGroup group_;
  const std::chrono::milliseconds timeout_;
  std::vector<int> peers_;
  const std::int64_t segment_bytes_;
  const FileDescriptor abort_;   ///< readable once it is called for
  const FileDescriptor poller_;  ///< of that and of every link
  std::atomic<bool> aborted_{false};
  std::vector<std::byte> staging_;
  std::int64_t staged_bytes_ = 0;
  std::vector<std::unique_ptr<Link>> links_;  ///< by peer; none for this rank
  std::unique_ptr<Outgoing> staged_;
  int last_peer_ = 0;
  std::vector<double> waited_for_bytes_;  ///< seconds, by peer
};

}  // namespace dstrain
