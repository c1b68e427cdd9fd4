// GlooMesh: what the members of one group send each other over TCP, with Gloo's pairs underneath.
//
// Two channels lead from each member to each other one:
//   window  a ring of segments at the receiver, who uses them in place and gives credit back as it
//           releases them: for heads of operations and for parts of a reduction.
//   direct  straight into the receiver's tensor, which it has opened before it sent its head.
//
// Why not Gloo's own collectives or unbound buffers: each of their messages is preceded by a
// handshake, and as Gloo's source reads, a transfer that a dying peer leaves half done is not among
// those it wakes, so that its waiter stays until the timeout. Buffers bound to a pair have neither.
// Not for several threads at once, abort() excepted. Failures come as Gloo's exceptions.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gloo/transport/buffer.h>
#include <gloo/transport/context.h>
#include <gloo/transport/device.h>

#include "engine/comm/call.h"
#include "engine/comm/store.h"

namespace dstrain {

class GlooMesh {
 public:
  /// How many window segments may be sent ahead of what the peer, doing the same, has released.
  static constexpr std::int64_t kLookAhead = 3;
  /// Travels at the head of each operation, alone or with a small payload behind it.
  static constexpr std::int64_t kHeaderBytes = 64;
  static constexpr std::int64_t kPayloadBytes = 16 << 10;

  struct Group {
    std::string name;
    std::vector<int> members;  ///< world ranks
    int rank = 0;              ///< of this process, within them
  };

  GlooMesh(const std::shared_ptr<gloo::transport::Device>& device,
           Group group,
           std::chrono::milliseconds timeout);
  ~GlooMesh();
  GlooMesh(const GlooMesh&) = delete;
  GlooMesh& operator=(const GlooMesh&) = delete;

  /// Meets the others in `store` and connects to each. Throws Timeout, naming who did not come, or
  /// PeerLost. Nothing else works before it.
  void connect(Store& store, std::chrono::milliseconds timeout);

  [[nodiscard]] int rank() const { return group_.rank; }
  [[nodiscard]] int size() const { return static_cast<int>(group_.members.size()); }
  [[nodiscard]] const Group& group() const { return group_; }
  [[nodiscard]] std::int64_t segment_bytes() const { return segment_bytes_; }
  /// Memory that a mesh of `members` takes on each of them, beside the tensors it works on.
  [[nodiscard]] static std::int64_t buffer_bytes(int members);
  /// The others, beginning with the next one: so that not everybody sends to rank 0 first.
  [[nodiscard]] const std::vector<int>& peers() const { return peers_; }

  /// What a tensor is sent through: kWindow, or the n-th direct channel.
  enum class Channel : int { kWindow = 0, kDirect = 1 };
  static Channel direct(int index) { return Channel{static_cast<int>(Channel::kDirect) + index}; }

  /// Memory that is being sent from. If it goes unfinished, in an exception, it aborts the mesh.
  class Outgoing {
   public:
    Outgoing(GlooMesh& mesh, const void* data, std::int64_t bytes, Channel channel);
    Outgoing(Outgoing&&) = default;
    ~Outgoing();
    /// Bytes [offset, offset + bytes), at most segment_bytes(), to `peer`. Waits for credit where
    /// the channel needs it, not for delivery. On a direct channel they land at `offset` there too.
    void send(int peer, std::int64_t offset, std::int64_t bytes);
    /// Until all of it has left.
    void finish();

   private:
    GlooMesh& mesh_;
    void* const data_;
    const std::size_t bytes_;
    const Channel channel_;
    std::vector<std::unique_ptr<gloo::transport::Buffer>> buffers_;  ///< by peer, made when needed
    std::vector<std::int64_t> unfinished_;
  };

  /// Memory that peers send into, on one direct channel. Aborts the mesh if it goes unfinished.
  class Incoming {
   public:
    Incoming(GlooMesh& mesh, void* data, std::int64_t bytes, Channel channel);
    Incoming(Incoming&&) = default;
    ~Incoming();
    /// Opens it to `peer`, who will send `messages` pieces.
    void open(int peer, std::int64_t messages);
    /// Until the next piece from `peer` is there.
    void wait_one(int peer);
    /// Until everything is there.
    void finish();

   private:
    GlooMesh& mesh_;
    void* const data_;
    const std::size_t bytes_;
    const Channel channel_;
    std::vector<std::unique_ptr<gloo::transport::Buffer>> buffers_;
    std::vector<std::int64_t> expected_;
  };

  /// The head of an operation, with `payload` behind it, to one peer or to all.
  void stage(const Call& call, std::span<const std::byte> payload = {});
  void send_head(int peer);
  void send_head_to_all();
  /// Waits for the peer's head and compares it; the payload stays valid until release().
  const std::byte* receive_head(int peer, const Call& expected);
  void receive_head_from_all(const Call& expected);
  /// Until the staged head may be overwritten.
  void finish_heads() { staged_->finish(); }

  /// The next window segment from `peer`, valid until release(). Released in order.
  const std::byte* receive(int peer);
  void release(int peer);

  /// Tells the others that this member leaves; returns once they leave too or something failed.
  void send_goodbye();
  void await_goodbyes();

  /// Closes every connection: pending and later calls of all members fail. From any thread.
  void abort() noexcept;
  /// The peer that was waited for last.
  [[nodiscard]] int last_peer() const { return last_peer_; }

 private:
  struct Link;
  /// Where to reach each member, by rank; as Gloo writes it.
  using Addresses = std::vector<std::vector<char>>;
  Addresses meet(Store& store, std::chrono::milliseconds timeout);  // gloo_meeting.cpp
  void make_links();
  std::int64_t next_place(int peer);

  const Group group_;
  std::vector<int> peers_;
  std::int64_t segment_bytes_ = 0;
  std::shared_ptr<gloo::transport::Context> context_;
  std::vector<std::byte> staging_;
  std::int64_t staged_bytes_ = 0;
  std::vector<std::unique_ptr<Link>> links_;  ///< by peer; none for this rank
  std::unique_ptr<Outgoing> staged_;
  int last_peer_ = 0;
};

}  // namespace dstrain
