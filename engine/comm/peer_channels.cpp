#include "engine/comm/peer_channels.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "engine/comm/communicator.h"

namespace dstrain {
namespace {

constexpr std::int64_t kReleasesPerCredit = PeerChannels::kSegments / 2;

/// A tensor of this size or more does not stay in a cache, and is written past them.
constexpr std::int64_t kMoreThanCachesHold = 32 << 20;

// Channel numbers of frames without a payload, beside those of Channel.
constexpr std::uint32_t kCredit = 0xffff'ffff;
constexpr std::uint32_t kGoodbye = 0xffff'fffe;
constexpr std::uint32_t kBell = 0xffff'fffd;  ///< there is something in shared memory

std::size_t index_of(std::uint32_t direct) {
  return direct - static_cast<std::uint32_t>(Channel::kDirect);
}
std::size_t index_of(Channel direct) {
  return index_of(static_cast<std::uint32_t>(direct));
}

[[noreturn]] std::byte* refuse(const FrameHeader& header) {
  throw FrameRefused(
      fmt::format("{} bytes arrived for offset {} of channel {}, where nothing expects them: they "
                  "were changed on the way, or it runs another build of dstrain",
                  header.bytes, header.offset, header.channel));
}

}  // namespace

PeerChannels::PeerChannels(MetPeer met,
                           std::unique_ptr<SharedLink> shared,
                           std::int64_t segment_bytes)
    : segment_bytes_(segment_bytes),
      window_(shared != nullptr ? 0 : static_cast<std::size_t>(kSegments * segment_bytes)),
      shared_(std::move(shared)),
      wire_(std::move(met.socket),
            FrameReader(*this, std::move(met.opens)),
            FrameWriter(std::move(met.seals), segment_bytes)) {}

bool PeerChannels::has_room(Channel channel) const {
  if (channel == Channel::kWindow) {
    return shared_ != nullptr ? shared_->has_window_room() : sent_ < may_send_;
  }
  return shared_ == nullptr || shared_->has_direct_room();
}

void PeerChannels::send(Channel channel,
                        const void* data,
                        std::int64_t bytes,
                        std::int64_t offset,
                        std::int64_t* left) {
  const FrameHeader header{
      .channel = static_cast<std::uint32_t>(channel),
      .bytes = static_cast<std::uint32_t>(bytes),
      .offset = channel == Channel::kWindow ? sent_ % kSegments * segment_bytes_ : offset};
  const auto* const from = static_cast<const std::byte*>(data);
  if (shared_ == nullptr) {
    sent_ += channel == Channel::kWindow ? 1 : 0;
    wire_.send(header, data, left);
    return;
  }
  if (channel == Channel::kWindow) {
    shared_->send_to_window(from, bytes, {});
  } else {
    shared_->send_directly(header, from);
  }
  --*left;
  ring_if_asleep();
}

void PeerChannels::send_for_return(void* data, std::int64_t bytes, std::int64_t* left) {
  auto* const memory = static_cast<std::byte*>(data);
  shared_->send_to_window(memory, bytes, {.to = memory, .left = left});
  ring_if_asleep();
}

void PeerChannels::send_goodbye() {
  wire_.send({.channel = kGoodbye}, nullptr, nullptr);
}

void PeerChannels::open(Channel channel, std::byte* data, std::int64_t bytes, std::int64_t pieces) {
  const std::size_t index = index_of(channel);
  open_.resize(std::max(open_.size(), index + 1));
  open_[index] = {.data = data, .bytes = bytes, .missing = pieces};
}

std::int64_t PeerChannels::missing(Channel channel) const {
  return open_[index_of(channel)].missing;
}

std::int64_t PeerChannels::in_window() const {
  return shared_ != nullptr ? shared_->in_window() : arrived_ - taken_;
}

std::byte* PeerChannels::take() {
  return shared_ != nullptr ? shared_->take()
                            : window_.data() + taken_++ % kSegments * segment_bytes_;
}

void PeerChannels::release() {
  if (shared_ != nullptr) {
    shared_->release();
    ring_if_asleep();
  } else if (++released_ % kReleasesPerCredit == 0) {
    wire_.send({.channel = kCredit}, nullptr, nullptr);
  }
}

void PeerChannels::give_back() {
  shared_->give_back();
  ring_if_asleep();
}

void PeerChannels::push() {
  if (shared_ != nullptr) {
    shared_->take_back();
  }
  wire_.push();
}

// Looks into shared memory once more when the connection has ended: what the peer left there before
// is still to be taken.
bool PeerChannels::move() {
  if (move_shared()) {
    return true;
  }
  try {
    if (!wire_.closed() && wire_.move() && !wire_.closed()) {
      return true;
    }
  } catch (const std::exception&) {
    if (!has_left_) {
      throw;
    }
  }
  if (!wire_.closed() || has_left_) {
    return false;
  }
  if (move_shared()) {
    return true;
  }
  throw PeerLost("it closed the connection");
}

bool PeerChannels::move_shared() {
  if (shared_ == nullptr) {
    return false;
  }
  bool moved = shared_->take_back();
  while (const auto header = shared_->next_direct()) {
    std::byte* const to = place_for(*header);
    const bool is_opened = header->bytes > 0;  // and not a frame without a payload
    const bool is_large =
        is_opened && open_[index_of(header->channel)].bytes >= kMoreThanCachesHold;
    shared_->take_direct(to, header->bytes,
                         is_large ? SharedLink::Caches::kPass : SharedLink::Caches::kUse);
    arrived(*header);
    ring_if_asleep();
    moved = true;
  }
  return moved;
}

void PeerChannels::set_asleep(bool asleep) {
  if (shared_ != nullptr) {
    shared_->set_asleep(asleep);
  }
}

void PeerChannels::ring_if_asleep() {
  if (shared_->must_wake_peer()) {
    wire_.send({.channel = kBell}, nullptr, nullptr);
  }
}

std::byte* PeerChannels::place_for(const FrameHeader& header) {
  if (header.channel == kCredit || header.channel == kGoodbye || header.channel == kBell) {
    return header.bytes == 0 ? &nothing_ : refuse(header);
  }
  if (header.channel == static_cast<std::uint32_t>(Channel::kWindow)) {
    const bool fits = shared_ == nullptr && header.bytes <= segment_bytes_ &&
                      arrived_ - released_ < kSegments &&
                      header.offset == arrived_ % kSegments * segment_bytes_;
    return fits ? window_.data() + header.offset : refuse(header);
  }
  const std::size_t index = index_of(header.channel);
  if (index >= open_.size() || open_[index].missing == 0 || header.offset < 0 ||
      header.offset > open_[index].bytes - std::int64_t{header.bytes}) {
    return refuse(header);
  }
  return open_[index].data + header.offset;
}

void PeerChannels::arrived(const FrameHeader& header) {
  if (header.channel == kCredit) {
    may_send_ += kReleasesPerCredit;
  } else if (header.channel == kGoodbye) {
    has_left_ = true;
  } else if (header.channel == static_cast<std::uint32_t>(Channel::kWindow)) {
    ++arrived_;
  } else if (header.channel != kBell) {
    --open_[index_of(header.channel)].missing;
  }
}

}  // namespace dstrain
