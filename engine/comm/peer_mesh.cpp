#include "engine/comm/peer_mesh.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <type_traits>
#include <utility>

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "engine/comm/communicator.h"

namespace dstrain {
namespace {

constexpr std::int64_t kMemory = 16 << 20;  // of windows, for a whole group if possible
constexpr std::int64_t kLargestSegment = 256 << 10;
constexpr std::int64_t kSmallestSegment = 32 << 10;
static_assert(PeerMesh::kHeaderBytes + PeerMesh::kPayloadBytes <= kSmallestSegment);
static_assert(PeerMesh::kLookAhead + 1 <= SharedLink::kSlots, "a head goes before the first parts");

/// How often a wait polls before it sleeps.
constexpr int kLooks = 40;

void pause_processor() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

struct Head {
  std::uint32_t magic = 0x64737472;
  Call call;
};
static_assert(sizeof(Head) <= PeerMesh::kHeaderBytes && std::is_trivially_copyable_v<Head>);

}  // namespace

PeerMesh::PeerMesh(PeerGroup group, std::chrono::milliseconds timeout)
    : group_(std::move(group)),
      timeout_(timeout),
      segment_bytes_(segment_bytes(size())),
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

std::int64_t PeerMesh::segment_bytes(int members) {
  return std::clamp(kMemory / PeerChannels::kSegments / (members - 1) / 4096 * 4096,
                    kSmallestSegment, kLargestSegment);
}

// Two members of one host have twice as many segments between them as the window of each would have
// at a socket: as much for each.
std::int64_t PeerMesh::buffer_bytes(int members, WireSecurity security) {
  const std::int64_t segment = segment_bytes(members);
  const std::int64_t encrypted = security == WireSecurity::kEncrypted ? segment : 0;
  return (members - 1) * (SharedLink::bytes(segment) / 2 + encrypted +
                          static_cast<std::int64_t>(FrameReader::kBufferBytes)) +
         kHeaderBytes + kPayloadBytes;
}

void PeerMesh::connect(const WireOptions& options,
                       Store& store,
                       std::chrono::milliseconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  std::vector<MetPeer> met = meet_peers(group_, options, store, timeout);
  std::vector<HostIdentity> hosts;
  std::transform(met.begin(), met.end(), std::back_inserter(hosts),
                 [](const MetPeer& peer) { return peer.host; });
  layout_ = std::make_unique<HostLayout>(hosts);
  auto shared = share_memory(met, options, deadline);
  links_.resize(met.size());
  const auto watch = [this](const FileDescriptor& socket, std::uint32_t events, Link* source) {
    epoll_event event{.events = events, .data = {.ptr = source}};
    check(epoll_ctl(poller_.get(), EPOLL_CTL_ADD, socket.get(), &event) == 0, "epoll_ctl: {}",
          errno);
  };
  watch(abort_, EPOLLIN, nullptr);
  for (const int peer : peers_) {
    const auto place = static_cast<std::size_t>(peer);
    links_[place] =
        std::make_unique<Link>(std::move(met[place]), std::move(shared[place]), segment_bytes_);
    watch(link(peer).socket(), EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, &link(peer));
  }
  staged_ = std::make_unique<Outgoing>(*this, staging_.data(), Channel::kWindow);
}

// Each gives to those of higher rank before it waits for anybody, so no two wait for each other.
std::vector<std::unique_ptr<SharedLink>> PeerMesh::share_memory(const std::vector<MetPeer>& met,
                                                                const WireOptions& options,
                                                                Clock::time_point deadline) {
  std::vector<SharedMemoryOrReason> made(met.size());
  std::vector<std::unique_ptr<SharedLink>> links(met.size());
  const std::int64_t bytes = SharedLink::bytes(segment_bytes_);
  const auto with_those = [&](bool of_higher_rank, const auto& visit) {
    for (std::size_t peer = 0; peer < met.size(); ++peer) {
      const bool is_higher = static_cast<int>(peer) > rank();
      if (!met[peer].on_this_host || is_higher != of_higher_rank ||
          static_cast<int>(peer) == rank()) {
        continue;
      }
      try {
        visit(made[peer], met[peer].socket);
      } catch (const std::runtime_error& failure) {
        const std::string what = fmt::format(
            "forming group \"{}\": sharing memory with rank {} (rank {} of the job): {}",
            group_.name, peer, group_.members[peer], failure.what());
        if (Clock::now() >= deadline) throw Timeout(what);
        throw PeerLost(what);
      }
    }
  };
  if (options.on_one_host != HostPath::kSharedMemory) {
    return links;
  }
  with_those(true, [&](SharedMemoryOrReason& here, const FileDescriptor& socket) {
    here = give_memory(socket, bytes);
  });
  with_those(false, [&](SharedMemoryOrReason& here, const FileDescriptor& socket) {
    here = take_memory(socket, bytes, deadline);
  });
  with_those(true, [&](SharedMemoryOrReason& here, const FileDescriptor& socket) {
    if (here.memory && !has_mapped(socket, deadline)) {
      here = {.memory = {}, .reason = "the other rank cannot map it"};
    }
  });
  for (std::size_t peer = 0; peer < met.size(); ++peer) {
    if (made[peer].memory) {
      const auto end =
          static_cast<int>(peer) > rank() ? SharedLink::End::kGiver : SharedLink::End::kTaker;
      links[peer] = std::make_unique<SharedLink>(std::move(made[peer].memory), end, segment_bytes_);
      shares_memory_ = true;
    } else if (met[peer].on_this_host) {
      no_shared_memory_ = made[peer].reason;
    }
  }
  return links;
}

// No wait is for a member that has left. A member whose connection fails ends every wait, whichever
// peer the wait is for: the operation cannot be completed without that member, and so the error
// names it.
template <typename Done>
void PeerMesh::wait_for(int peer, Wait what, const Done& done) {
  last_peer_ = peer;
  check_not_aborted();
  for (const int other : peers_) {
    link(other).push();
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
    if (link(peer).has_left()) {
      throw PeerLost("it has left the group");
    }
    if (looks++ < kLooks) {
      look_again(done);
      continue;
    }
    const auto now = Clock::now();
    if (deadline == Clock::time_point{}) {
      deadline = now + timeout_;
    }
    if (now >= deadline) {
      throw Timeout("nothing arrived in time");
    }
    sleep_until(deadline, done);
  }
  last_peer_ = peer;
  if (what == Wait::kBytes) {
    waited_for_bytes_[static_cast<std::size_t>(peer)] +=
        std::chrono::duration<double>(Clock::now() - begin).count();
  }
}

// A peer on this host that has a core answers within microseconds. One that has none gets this
// one's when this one sleeps, which it does soon. To yield the core instead is worse by far where
// others compute on it: who yields goes to the end of the queue, who is woken to its front.
template <typename Done>
void PeerMesh::look_again(const Done& done) {
  if (shares_memory_) {
    constexpr int kPauses = 16;
    for (int i = 0; i < kPauses; ++i) {
      if (done()) return;
      pause_processor();
    }
  }
  take_events(0);
}

template <typename Done>
void PeerMesh::sleep_until(Clock::time_point deadline, const Done& done) {
  const auto say = [this](bool asleep) {
    for (const int peer : peers_) {
      link(peer).set_asleep(asleep);
    }
  };
  say(true);
  if (!done() && !move_bytes()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    take_events(static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000)));
  }
  say(false);
}

double PeerMesh::take_transfer_wait(int peer) {
  return std::exchange(waited_for_bytes_[static_cast<std::size_t>(peer)], 0.0);
}

bool PeerMesh::move_bytes() {
  bool moved = false;
  for (const int peer : peers_) {
    try {
      moved = link(peer).move() || moved;
    } catch (const std::exception&) {
      last_peer_ = peer;
      throw;
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
      static_cast<Link*>(event.data.ptr)->note(event.events);
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

PeerMesh::Outgoing PeerMesh::Outgoing::for_return(PeerMesh& mesh, void* data) {
  Outgoing outgoing(mesh, data, Channel::kWindow);
  outgoing.back_ = static_cast<std::byte*>(data);
  return outgoing;
}

void PeerMesh::Outgoing::send_to(int peer,
                                 std::int64_t there,
                                 std::int64_t offset,
                                 std::int64_t bytes) {
  Link& to = mesh_.link_with_room(peer, channel_);
  std::int64_t& left = unfinished_[static_cast<std::size_t>(peer)];
  ++left;
  if (back_ != nullptr && to.returns_segments()) {
    to.send_for_return(back_ + offset, bytes, &left);
  } else {
    to.send(channel_, data_ + offset, bytes, there, &left);
  }
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

bool PeerMesh::Incoming::has_one(int peer) const {
  return mesh_.link(peer).missing(channel_) < expected_[static_cast<std::size_t>(peer)];
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

PeerMesh::Link& PeerMesh::link_with_room(int peer, Channel channel) {
  Link& to = link(peer);
  last_peer_ = peer;
  if (!to.has_room(channel)) {
    wait_for(peer, Wait::kBytes, [&] { return to.has_room(channel); });
  }
  return to;
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
    if (to.has_pending() && !to.has_left()) {
      wait_for(peer, Wait::kBytes, [&] { return !to.has_pending(); });
    }
  }
}

std::byte* PeerMesh::receive(int peer) {
  return receive(peer, Wait::kBytes);
}

std::byte* PeerMesh::receive(int peer, Wait what) {
  Link& from = link(peer);
  wait_for(peer, what, [&] { return from.in_window() > 0; });
  return from.take();
}

void PeerMesh::release(int peer) {
  link(peer).release();
}

void PeerMesh::give_back(int peer) {
  link(peer).give_back();
}

void PeerMesh::send_goodbye() {
  check_not_aborted();  // what it left unsent may be gone
  for (const int peer : peers_) {
    link(peer).send_goodbye();
  }
}

void PeerMesh::await_goodbyes() {
  for (const int peer : peers_) {
    const Link& other = link(peer);
    wait_for(peer, Wait::kArrival, [&] { return other.has_left(); });
  }
  finish_heads();
}

void PeerMesh::abort() noexcept {
  aborted_ = true;
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(abort_.get(), &one, sizeof one);
  for (const auto& other : links_) {
    if (other != nullptr) {
      other->shut_down();
    }
  }
}

}  // namespace dstrain
