// PeerMesh: carries what the members of one group send each other, over a connected socket for each
// pair, and where both are on one host through memory that they share (peer_channels.h).
//
// No thread is dedicated to moving bytes: a caller that waits for one peer moves what there is to
// move on every link of the group, both ways, so that no two members ever wait for each other's
// reading. A wait looks for some microseconds and then sleeps until a socket brings something,
// which is also how the end of a peer is noticed; who puts something into shared memory rings for
// those that sleep. Must not be used by several threads at once, except for abort(). Waits throw
// PeerLost or Timeout.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/comm/call.h"
#include "engine/comm/host_layout.h"
#include "engine/comm/peer_channels.h"
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
  [[nodiscard]] static std::int64_t segment_bytes(int members);
  /// Where the members are; known once connected.
  [[nodiscard]] const HostLayout& layout() const { return *layout_; }
  /// The memory that a mesh of `members` takes on each of them, beside the tensors it works on.
  [[nodiscard]] static std::int64_t buffer_bytes(int members, WireSecurity security);
  /// The others, beginning with the next one: so that not everybody sends to rank 0 first.
  [[nodiscard]] const std::vector<int>& peers() const { return peers_; }

  /// Whether a window segment from `peer` goes back to it when released, with what has been written
  /// into it. It does where the two share memory.
  [[nodiscard]] bool returns_segments(int peer) const {
    return links_[static_cast<std::size_t>(peer)]->returns_segments();
  }
  /// Why members of this host do not share memory, which they should; "" if all do.
  [[nodiscard]] const std::string& no_shared_memory() const { return no_shared_memory_; }

  /// Memory that is being sent from. If it goes unfinished, in an exception, it aborts the mesh.
  class Outgoing {
   public:
    Outgoing(PeerMesh& mesh, const void* data, Channel channel);
    /// Memory that goes through the window and is overwritten with what comes back from peers that
    /// return segments.
    static Outgoing for_return(PeerMesh& mesh, void* data);
    Outgoing(Outgoing&&) = default;
    ~Outgoing();
    /// Sends bytes [offset, offset + bytes), at most segment_bytes(), to `peer`. Waits for room
    /// where the channel needs it, not for delivery. On a direct channel they land at `offset`
    /// there too.
    void send(int peer, std::int64_t offset, std::int64_t bytes) {
      send_to(peer, offset, offset, bytes);
    }
    /// The same, where they land at `there`.
    void send_to(int peer, std::int64_t there, std::int64_t offset, std::int64_t bytes);
    /// Waits until all of it has left, and come back where it does.
    void finish();

   private:
    PeerMesh& mesh_;
    const std::byte* data_;
    std::byte* back_ = nullptr;  ///< data_, if it may be overwritten
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
    /// Whether wait_one() would return at once.
    [[nodiscard]] bool has_one(int peer) const;
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

  /// Waits for the next window segment from `peer`, which is valid until release(), and may be
  /// written to. Segments are released in order.
  std::byte* receive(int peer);
  void release(int peer);
  /// The same for a segment that has been overwritten, from a peer to which it goes back.
  void give_back(int peer);

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
  using Link = PeerChannels;
  std::vector<std::unique_ptr<SharedLink>> share_memory(
      const std::vector<MetPeer>& met,
      const WireOptions& options,
      std::chrono::steady_clock::time_point deadline);
  Link& link(int peer) { return *links_[static_cast<std::size_t>(peer)]; }
  /// Waits until something may be sent.
  Link& link_with_room(int peer, Channel channel);
  /// Says whether a wait is for the peer to take part, or for bytes to move.
  enum class Wait : std::uint8_t { kArrival, kBytes };
  template <typename Done>
  void wait_for(int peer, Wait what, const Done& done);
  template <typename Done>
  void look_again(const Done& done);
  template <typename Done>
  void sleep_until(std::chrono::steady_clock::time_point deadline, const Done& done);
  std::byte* receive(int peer, Wait what);
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
  std::unique_ptr<HostLayout> layout_;
  std::vector<std::unique_ptr<Link>> links_;  ///< by peer; none for this rank
  bool shares_memory_ = false;                ///< with anyone
  std::string no_shared_memory_;
  std::unique_ptr<Outgoing> staged_;
  int last_peer_ = 0;
  std::vector<double> waited_for_bytes_;  ///< seconds, by peer
};

}  // namespace dstrain
