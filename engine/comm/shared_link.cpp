#include "engine/comm/shared_link.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace dstrain {
namespace {

constexpr std::int64_t kPage = 4096;

/// Writes to each line of what the peer has written, once it has been read. A processor whose lines
/// another one has only read pays for each when it writes to it again: on a Zen 5 a stream of
/// segments went at 2 to 9 GB/s without this and at 31 with it.
void own_lines(std::byte* data, std::int64_t bytes) {
  constexpr std::int64_t kLine = 64;
  for (std::int64_t at = 0; at < bytes; at += kLine) {
    static_cast<volatile std::byte&>(data[at]) = std::byte{0};
  }
}

/// Writes to memory without reading there first what is overwritten, a third of what a copy moves:
/// 64 MiB are gathered in 3.6 ms in place of 4.3. finish_copies() is to follow. `bytes` is a
/// multiple of 16, `from` aligned to it.
void copy_past_caches(std::byte* to, const std::byte* from, std::int64_t bytes) {
#if defined(__x86_64__)
  if (reinterpret_cast<std::uintptr_t>(to) % sizeof(__m128i) == 0) {
    for (std::int64_t at = 0; at < bytes; at += sizeof(__m128i)) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + at),
                       _mm_load_si128(reinterpret_cast<const __m128i*>(from + at)));
    }
    return;
  }
#endif
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

/// Until then other stores may become visible before those that pass the caches.
void finish_copies() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

std::int64_t rounded_up(std::int64_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

}  // namespace

std::int64_t SharedLink::bytes(std::int64_t segment_bytes) {
  return rounded_up(2 * static_cast<std::int64_t>(sizeof(Direction))) +
         2 * kRings * kSlots * segment_bytes;
}

SharedLink::SharedLink(SharedMemory memory, End end, std::int64_t segment_bytes)
    : memory_(std::move(memory)), end_(end), segment_bytes_(segment_bytes) {
  static_assert(std::atomic<std::int64_t>::is_always_lock_free);
}

SharedLink::Direction& SharedLink::direction(bool outwards) const {
  const bool from_giver = (end_ == End::kGiver) == outwards;
  return reinterpret_cast<Direction*>(memory_.data())[from_giver ? 0 : 1];
}

std::byte* SharedLink::slot(bool outwards, bool direct, std::int64_t number) const {
  const bool from_giver = (end_ == End::kGiver) == outwards;
  const std::int64_t ring = (from_giver ? 0 : kRings) + (direct ? 1 : 0);
  return memory_.data() + rounded_up(2 * static_cast<std::int64_t>(sizeof(Direction))) +
         (ring * kSlots + number % kSlots) * segment_bytes_;
}

std::int64_t SharedLink::read(const std::atomic<std::int64_t>& count,
                              std::int64_t least,
                              std::int64_t most) {
  const std::int64_t value = count.load();
  if (value < least || value > most) {
    throw FrameRefused(fmt::format(
        "it counts {} segments where {} to {} can be: its memory was overwritten, or it runs "
        "another build of dstrain",
        value, least, most));
  }
  return value;
}

void SharedLink::send_to_window(const std::byte* data, std::int64_t bytes, const Back& back) {
  const auto place = static_cast<std::size_t>(sent_ % kSlots);
  std::memcpy(slot(true, false, sent_), data, static_cast<std::size_t>(bytes));
  backs_[place] = back;
  sizes_[place] = bytes;
  Ring& ring = direction(true).window;
  ring.headers[place] = {.channel = 0, .bytes = static_cast<std::uint32_t>(bytes), .offset = 0};
  ring.filled.store(++sent_);
}

bool SharedLink::take_back() {
  const std::int64_t emptied = read(direction(true).window.emptied, free_, sent_);
  const bool any = free_ < emptied;
  for (; free_ < emptied; ++free_) {
    const auto place = static_cast<std::size_t>(free_ % kSlots);
    if (const Back& back = backs_[place]; back.to != nullptr) {
      std::memcpy(back.to, slot(true, false, free_), static_cast<std::size_t>(sizes_[place]));
      --*back.left;
    }
  }
  return any;
}

std::int64_t SharedLink::in_window() const {
  return read(direction(false).window.filled, taken_, released_ + kSlots) - taken_;
}

std::byte* SharedLink::take() {
  return slot(false, false, taken_++);
}

void SharedLink::release() {
  const auto place = static_cast<std::size_t>(released_ % kSlots);
  const std::int64_t bytes = direction(false).window.headers[place].bytes;
  own_lines(slot(false, false, released_), std::min(bytes, segment_bytes_));
  give_back();
}

void SharedLink::give_back() {
  direction(false).window.emptied.store(++released_);
}

bool SharedLink::has_direct_room() const {
  const std::int64_t emptied =
      read(direction(true).direct.emptied, sent_directly_ - kSlots, sent_directly_);
  return sent_directly_ - emptied < kSlots;
}

void SharedLink::send_directly(const FrameHeader& header, const std::byte* data) {
  std::memcpy(slot(true, true, sent_directly_), data, header.bytes);
  Ring& ring = direction(true).direct;
  ring.headers[static_cast<std::size_t>(sent_directly_ % kSlots)] = header;
  ring.filled.store(++sent_directly_);
}

std::optional<FrameHeader> SharedLink::next_direct() const {
  const Ring& ring = direction(false).direct;
  if (read(ring.filled, taken_directly_, taken_directly_ + kSlots) == taken_directly_) {
    return std::nullopt;
  }
  const FrameHeader header = ring.headers[static_cast<std::size_t>(taken_directly_ % kSlots)];
  if (header.bytes > segment_bytes_) {
    throw FrameRefused(fmt::format("a segment of {} bytes arrived", header.bytes));
  }
  return header;
}

void SharedLink::take_direct(std::byte* to, std::int64_t bytes, Caches caches) {
  std::byte* const from = slot(false, true, taken_directly_);
  constexpr std::int64_t kBlock = 8 << 10;  // stays in the first-level cache
  for (std::int64_t at = 0; at < bytes; at += kBlock) {
    const std::int64_t count = std::min(kBlock, bytes - at);
    if (caches == Caches::kPass && count == kBlock) {
      copy_past_caches(to + at, from + at, count);
    } else {
      std::memcpy(to + at, from + at, static_cast<std::size_t>(count));
    }
    own_lines(from + at, count);
  }
  finish_copies();
  direction(false).direct.emptied.store(++taken_directly_);
}

void SharedLink::set_asleep(bool asleep) {
  direction(true).sender_asleep.store(asleep ? 1 : 0);
}

bool SharedLink::must_wake_peer() {
  std::atomic<std::uint32_t>& asleep = direction(false).sender_asleep;
  return asleep.load() != 0 && asleep.exchange(0) != 0;
}

}  // namespace dstrain
