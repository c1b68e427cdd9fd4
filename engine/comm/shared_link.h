// SharedLink: segments of memory that two members of one host hand each other, as many each way and
// channel. It moves bytes and never waits; who waits, sleeps and rings is peer_channels.h's matter.
//
//   sender: copy into slot n, filled = n + 1   →   receiver: use slot n in place, emptied = n + 1
//   sender: take back what the receiver left in slot n, if it asked for that; the slot is free
//
// So a part of a reduction travels in a slot and its result comes back in the same one.
//
// The other end is trusted no further than over a socket: counts and sizes are checked, and a
// header is copied first, so that it cannot change behind the check.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "engine/comm/link_frames.h"
#include "engine/comm/shared_memory.h"

namespace dstrain {

class SharedLink {
 public:
  /// Slots of a ring; a direction has a ring for each channel.
  static constexpr std::int64_t kSlots = 4;
  static constexpr std::int64_t kRings = 2;
  enum class End : std::uint8_t { kGiver, kTaker };

  /// The memory that both directions of a link take.
  [[nodiscard]] static std::int64_t bytes(std::int64_t segment_bytes);
  /// `memory` has bytes(segment_bytes), zeros when it was given.
  SharedLink(SharedMemory memory, End end, std::int64_t segment_bytes);

  /// Where a segment's bytes go once it has come back; counts `left` down by one then.
  struct Back {
    std::byte* to = nullptr;
    std::int64_t* left = nullptr;
  };
  /// The window, outwards. It needs room.
  [[nodiscard]] bool has_window_room() const { return sent_ - free_ < kSlots; }
  void send_to_window(const std::byte* data, std::int64_t bytes, const Back& back);
  /// Copies back what has been released. False if nothing has.
  bool take_back();

  /// The window, inwards: segments that arrived and were not taken, in order; a segment may be
  /// written to until it is released.
  [[nodiscard]] std::int64_t in_window() const;
  std::byte* take();
  void release();
  /// The same for a segment that has been overwritten.
  void give_back();

  /// The direct channels.
  [[nodiscard]] bool has_direct_room() const;
  void send_directly(const FrameHeader& header, const std::byte* data);
  /// The header of the next piece that has arrived, if any; its size is a segment's at most.
  [[nodiscard]] std::optional<FrameHeader> next_direct() const;
  /// Copies that piece, of `bytes`. Caches are passed where they could not hold all that is copied.
  enum class Caches : std::uint8_t { kUse, kPass };
  void take_direct(std::byte* to, std::int64_t bytes, Caches caches);

  /// Says that this end is about to sleep, or no longer does. It must look at the rings once more
  /// before it sleeps: what the peer does after that makes the peer's must_wake_peer() true.
  void set_asleep(bool asleep);
  /// True once after each set_asleep(true) of the peer, to the end that has done something since.
  [[nodiscard]] bool must_wake_peer();

 private:
  /// Two lines, as processors fetch lines in pairs.
  static constexpr std::size_t kApart = 128;
  struct Ring {
    alignas(kApart) std::atomic<std::int64_t> filled;   ///< written by the sender
    alignas(kApart) std::atomic<std::int64_t> emptied;  ///< written by the receiver
    alignas(kApart) std::array<FrameHeader, kSlots> headers;
  };
  /// The rings through which one end sends.
  struct Direction {
    Ring window;
    Ring direct;
    alignas(kApart) std::atomic<std::uint32_t> sender_asleep;
  };
  [[nodiscard]] Direction& direction(bool outwards) const;
  [[nodiscard]] std::byte* slot(bool outwards, bool direct, std::int64_t number) const;
  /// Reads a count of the peer's, which must lie in [least, most].
  static std::int64_t read(const std::atomic<std::int64_t>& count,
                           std::int64_t least,
                           std::int64_t most);

  const SharedMemory memory_;
  const End end_;
  const std::int64_t segment_bytes_;
  std::int64_t sent_ = 0;
  std::int64_t free_ = 0;  ///< slots of those sent that have come back
  std::array<Back, kSlots> backs_;
  std::array<std::int64_t, kSlots> sizes_{};
  std::int64_t taken_ = 0;
  std::int64_t released_ = 0;
  std::int64_t sent_directly_ = 0;
  std::int64_t taken_directly_ = 0;
};

}  // namespace dstrain
