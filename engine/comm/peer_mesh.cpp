#include "engine/comm/peer_mesh.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <type_traits>
#include <utility>

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "engine/comm/communicator.h"
#include "engine/comm/peer_link.h"

namespace dstrain {
namespace {

constexpr std::int64_t kWindow = 8;  // segments in flight to one peer
constexpr std::int64_t kReleasesPerCredit = kWindow / 2;
constexpr std::int64_t kMemory = 16 << 20;  // of windows, for a whole group if possible
constexpr std::int64_t kLargestSegment = 256 << 10;
constexpr std::int64_t kSmallestSegment = 32 << 10;
static_assert(PeerMesh::kHeaderBytes + PeerMesh::kPayloadBytes <= kSmallestSegment);

// The channel number of credits, beside those of Channel.
constexpr std::uint32_t kCredit = 0xffff'ffff;
constexpr std::uint32_t kGoodbye = 0xffff'fffe;

/// How often a wait polls before it sleeps.
constexpr int kLooks = 40;

std::int64_t segment_bytes_of(int members) {
  return std::clamp(kMemory / kWindow / (members - 1) / 4096 * 4096, kSmallestSegment,
                    kLargestSegment);
}

struct Head {
  std::uint32_t magic = 0x64737472;
  Call call;
};
static_assert(sizeof(Head) <= PeerMesh::kHeaderBytes && std::is_trivially_copyable_v<Head>);

}  // namespace

/// One peer: its window here, the memory that is open to it, and counts of what went each way.
class PeerMesh::Link final : public FrameSink {
 public:
  Link(MetPeer met, std::int64_t segment_bytes)
      : segment_bytes_(segment_bytes),
        window_(static_cast<std::size_t>(kWindow * segment_bytes)),
        wire(std::move(met.socket),
             FrameReader(*this, std::move(met.opens)),
             FrameWriter(std::move(met.seals), segment_bytes)) {}

  std::byte* place_for(const FrameHeader& header) override {
    if (header.channel == kCredit || header.channel == kGoodbye) {
      return header.bytes == 0 ? window_.data() : refuse(header);
    }
    if (header.channel == static_cast<std::uint32_t>(Channel::kWindow)) {
      const bool fits = header.bytes <= segment_bytes_ && arrived_ - released < kWindow &&
                        header.offset == arrived_ % kWindow * segment_bytes_;
      return fits ? window_.data() + header.offset : refuse(header);
    }
    const std::size_t index = header.channel - static_cast<std::uint32_t>(Channel::kDirect);
    if (index >= open_.size() || open_[index].missing == 0 || header.offset < 0 ||
        header.offset > open_[index].bytes - std::int64_t{header.bytes}) {
      return refuse(header);
    }
    return open_[index].data + header.offset;
  }

  void arrived(const FrameHeader& header) override {
    if (header.channel == kCredit) {
      may_send += kReleasesPerCredit;
    } else if (header.channel == kGoodbye) {
      has_left = true;
    } else if (header.channel == static_cast<std::uint32_t>(Channel::kWindow)) {
      ++arrived_;
    } else {
      --open_[header.channel - static_cast<std::uint32_t>(Channel::kDirect)].missing;
    }
  }

  void open(Channel channel, std::byte* data, std::int64_t bytes, std::int64_t pieces) {
    const std::size_t index =
        static_cast<std::uint32_t>(channel) - static_cast<std::uint32_t>(Channel::kDirect);
    open_.resize(std::max(open_.size(), index + 1));
    open_[index] = {.data = data, .bytes = bytes, .missing = pieces};
  }
  /// Pieces that a direct channel still waits for.
  [[nodiscard]] std::int64_t missing(Channel channel) const {
    return open_[static_cast<std::uint32_t>(channel) - static_cast<std::uint32_t>(Channel::kDirect)]
        .missing;
  }
  [[nodiscard]] std::int64_t in_window() const { return arrived_ - taken; }
  const std::byte* take() { return window_.data() + taken++ % kWindow * segment_bytes_; }

 private:
  struct Opened {
    std::byte* data = nullptr;
    std::int64_t bytes = 0;
    std::int64_t missing = 0;
  };

  [[noreturn]] static std::byte* refuse(const FrameHeader& header) {
    throw FrameRefused(fmt::format(
        "{} bytes arrived for offset {} of channel {}, where nothing expects them: they "
        "were changed on the way, or it runs another build of dstrain",
        header.bytes, header.offset, header.channel));
  }

  const std::int64_t segment_bytes_;
  std::vector<std::byte> window_;
  std::vector<Opened> open_;  ///< by direct channel
  std::int64_t arrived_ = 0;

 public:
  PeerLink wire;  // last: it reads into the others
  std::int64_t sent = 0;
  std::int64_t may_send = kWindow;
  std::int64_t taken = 0;
  std::int64_t released = 0;
  bool has_left = false;
};

PeerMesh::PeerMesh(PeerGroup group, std::chrono::milliseconds timeout)
    : group_(std::move(group)),
      timeout_(timeout),
      segment_bytes_(segment_bytes_of(size())),
      abort_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      poller_(epoll_create1(EPOLL_CLOEXEC)),
      staging_(static_cast<std::size_t>(kHeaderBytes + kPayloadBytes)),
      waited_for_bytes_(static_cast<std::size_t>(size())) {
  check(abort_ && poller_, "group \"{}\": no descriptors left", group_.name);
  for (int step = 1; step < size(); ++step) {
    peers_.push_back((rank() + step) % size());
  }
}

PeerMesh::~PeerMesh() = default;

std::int64_t PeerMesh::buffer_bytes(int members, WireSecurity security) {
  const std::int64_t segments = kWindow + (security == WireSecurity::kEncrypted ? 1 : 0);
  return (members - 1) * (segments * segment_bytes_of(members) +
                          static_cast<std::int64_t>(FrameReader::kBufferBytes)) +
         kHeaderBytes + kPayloadBytes;
}

void PeerMesh::connect(const WireOptions& options,
                       Store& store,
                       std::chrono::milliseconds timeout) {
  std::vector<MetPeer> met = meet_peers(group_, options, store, timeout);
  links_.resize(met.size());
  const auto watch = [this](const FileDescriptor& socket, std::uint32_t events, Link* source) {
    epoll_event event{.events = events, .data = {.ptr = source}};
    check(epoll_ctl(poller_.get(), EPOLL_CTL_ADD, socket.get(), &event) == 0, "epoll_ctl: {}",
          errno);
  };
  watch(abort_, EPOLLIN, nullptr);
  for (const int peer : peers_) {
    const auto place = static_cast<std::size_t>(peer);
    links_[place] = std::make_unique<Link>(std::move(met[place]), segment_bytes_);
    watch(link(peer).wire.socket(), EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, &link(peer));
  }
  staged_ = std::make_unique<Outgoing>(*this, staging_.data(), Channel::kWindow);
}

// No wait is for a member that has left. A member whose connection fails ends every wait, whichever
// peer the wait is for: the operation cannot be completed without that member, and so the error
// names it.
template <typename Done>
void PeerMesh::wait_for(int peer, Wait what, const Done& done) {
  last_peer_ = peer;
  check_not_aborted();
  for (const int other : peers_) {
    link(other).wire.push();
  }
  if (done()) return;
  const Clock::time_point begin = what == Wait::kBytes ? Clock::now() : Clock::time_point{};
  Clock::time_point deadline{};
  for (int looks = 0; !done();) {
    check_not_aborted();
    if (move_bytes()) {
      looks = 0;
      continue;
    }
    last_peer_ = peer;
    if (link(peer).has_left) {
      throw PeerLost("it has left the group");
    }
    if (looks++ < kLooks) {
      take_events(0);
      continue;
    }
    const auto now = Clock::now();
    if (deadline == Clock::time_point{}) {
      deadline = now + timeout_;
    }
    if (now >= deadline) {
      throw Timeout("nothing arrived in time");
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - now).count();
    take_events(static_cast<int>(std::min<std::int64_t>(left, 60'000)));
  }
  last_peer_ = peer;
  if (what == Wait::kBytes) {
    waited_for_bytes_[static_cast<std::size_t>(peer)] +=
        std::chrono::duration<double>(Clock::now() - begin).count();
  }
}

double PeerMesh::take_transfer_wait(int peer) {
  return std::exchange(waited_for_bytes_[static_cast<std::size_t>(peer)], 0.0);
}

bool PeerMesh::move_bytes() {
  bool moved = false;
  for (const int peer : peers_) {
    Link& other = link(peer);
    if (other.wire.closed()) {
      continue;
    }
    try {
      moved = other.wire.move() || moved;
      if (other.wire.closed() && !other.has_left) {
        throw PeerLost("it closed the connection");
      }
    } catch (const std::exception&) {
      last_peer_ = peer;
      if (!other.has_left) {
        throw;
      }
    }
  }
  return moved;
}

void PeerMesh::take_events(int milliseconds) {
  std::array<epoll_event, 64> events;
  const int count =
      epoll_wait(poller_.get(), events.data(), static_cast<int>(events.size()), milliseconds);
  check(count >= 0 || errno == EINTR, "epoll_wait: {}", errno);
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events[static_cast<std::size_t>(i)];
    if (event.data.ptr != nullptr) {
      static_cast<Link*>(event.data.ptr)->wire.note(event.events);
    }
  }
}

void PeerMesh::check_not_aborted() const {
  if (aborted_) {
    throw PeerLost("the group was aborted");
  }
}

PeerMesh::Outgoing::Outgoing(PeerMesh& mesh, const void* data, Channel channel)
    : mesh_(mesh),
      data_(static_cast<const std::byte*>(data)),
      channel_(channel),
      unfinished_(static_cast<std::size_t>(mesh.size()), 0) {}

PeerMesh::Outgoing::~Outgoing() {
  if (std::any_of(unfinished_.begin(), unfinished_.end(), [](auto left) { return left > 0; })) {
    mesh_.abort();  // nothing reads this memory any more
  }
}

void PeerMesh::Outgoing::send(int peer, std::int64_t offset, std::int64_t bytes) {
  mesh_.last_peer_ = peer;
  const std::int64_t place = channel_ == Channel::kWindow ? mesh_.next_place(peer) : offset;
  std::int64_t& left = unfinished_[static_cast<std::size_t>(peer)];
  ++left;
  mesh_.link(peer).wire.send({.channel = static_cast<std::uint32_t>(channel_),
                              .bytes = static_cast<std::uint32_t>(bytes),
                              .offset = place},
                             data_ + offset, &left);
}

void PeerMesh::Outgoing::finish() {
  for (const int peer : mesh_.peers_) {
    const std::int64_t& left = unfinished_[static_cast<std::size_t>(peer)];
    if (left > 0) {
      mesh_.wait_for(peer, Wait::kBytes, [&] { return left == 0; });
    }
  }
}

PeerMesh::Incoming::Incoming(PeerMesh& mesh, void* data, std::int64_t bytes, Channel channel)
    : mesh_(mesh),
      data_(static_cast<std::byte*>(data)),
      bytes_(bytes),
      channel_(channel),
      expected_(static_cast<std::size_t>(mesh.size()), 0) {}

PeerMesh::Incoming::~Incoming() {
  if (std::any_of(expected_.begin(), expected_.end(), [](auto left) { return left > 0; })) {
    mesh_.abort();  // nothing writes this memory any more
  }
}

void PeerMesh::Incoming::open(int peer, std::int64_t messages) {
  if (messages > 0) {
    mesh_.link(peer).open(channel_, data_, bytes_, messages);
    expected_[static_cast<std::size_t>(peer)] = messages;
  }
}

void PeerMesh::Incoming::wait_one(int peer) {
  std::int64_t& expected = expected_[static_cast<std::size_t>(peer)];
  const Link& link = mesh_.link(peer);
  mesh_.wait_for(peer, Wait::kBytes, [&] { return link.missing(channel_) < expected; });
  --expected;
}

void PeerMesh::Incoming::finish() {
  for (const int peer : mesh_.peers_) {
    while (expected_[static_cast<std::size_t>(peer)] > 0) {
      wait_one(peer);
    }
  }
}

std::int64_t PeerMesh::next_place(int peer) {
  Link& to = link(peer);
  if (to.sent >= to.may_send) {
    wait_for(peer, Wait::kBytes, [&] { return to.sent < to.may_send; });
  }
  return to.sent++ % kWindow * segment_bytes_;
}

void PeerMesh::stage(const Call& call, std::span<const std::byte> payload) {
  const Head head{.call = call};
  std::memcpy(staging_.data(), &head, sizeof head);
  if (!payload.empty()) {
    std::memcpy(staging_.data() + kHeaderBytes, payload.data(), payload.size());
  }
  staged_bytes_ = kHeaderBytes + static_cast<std::int64_t>(payload.size());
}

void PeerMesh::send_head(int peer) {
  staged_->send(peer, 0, staged_bytes_);
}

void PeerMesh::send_head_to_all() {
  for (const int peer : peers_) {
    send_head(peer);
  }
}

const std::byte* PeerMesh::receive_head(int peer, const Call& expected) {
  const std::byte* segment = receive(peer, Wait::kArrival);
  Head head;
  std::memcpy(static_cast<void*>(&head), segment, sizeof head);
  if (head.call != expected) {  // perhaps of an operation that its sender has given up meanwhile
    for (take_events(0); move_bytes();) {
      check_not_aborted();
    }
  }
  check(head.magic == Head{}.magic && head.call == expected,
        "group \"{}\": rank {} calls {} while rank {} calls {}", group_.name, rank(),
        expected.describe(), peer, head.call.describe());
  return segment + kHeaderBytes;
}

void PeerMesh::receive_head_from_all(const Call& expected) {
  for (const int peer : peers_) {
    receive_head(peer, expected);
    release(peer);
  }
}

void PeerMesh::finish_heads() {
  for (const int peer : peers_) {
    const Link& to = link(peer);
    if (to.wire.has_pending() && !to.has_left) {
      wait_for(peer, Wait::kBytes, [&] { return !to.wire.has_pending(); });
    }
  }
}

const std::byte* PeerMesh::receive(int peer) {
  return receive(peer, Wait::kBytes);
}

const std::byte* PeerMesh::receive(int peer, Wait what) {
  Link& from = link(peer);
  wait_for(peer, what, [&] { return from.in_window() > 0; });
  return from.take();
}

void PeerMesh::release(int peer) {
  Link& from = link(peer);
  if (++from.released % kReleasesPerCredit == 0) {
    from.wire.send({.channel = kCredit}, nullptr, nullptr);
  }
}

void PeerMesh::send_goodbye() {
  check_not_aborted();  // what it left unsent may be gone
  for (const int peer : peers_) {
    link(peer).wire.send({.channel = kGoodbye}, nullptr, nullptr);
  }
}

void PeerMesh::await_goodbyes() {
  for (const int peer : peers_) {
    const Link& other = link(peer);
    wait_for(peer, Wait::kArrival, [&] { return other.has_left; });
  }
  finish_heads();
}

void PeerMesh::abort() noexcept {
  aborted_ = true;
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(abort_.get(), &one, sizeof one);
  for (const auto& other : links_) {
    if (other != nullptr) {
      other->wire.shut_down();
    }
  }
}

}  // namespace dstrain
