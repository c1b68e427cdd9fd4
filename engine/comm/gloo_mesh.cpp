#include "engine/comm/gloo_mesh.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "engine/comm/deadline.h"

namespace dstrain {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kWindow = 8;  // segments in flight to one peer
constexpr std::int64_t kReleasesPerCredit = kWindow / 2;
constexpr std::int64_t kMemory = 16 << 20;  // of windows, for a whole group if possible
constexpr std::int64_t kLargestSegment = 256 << 10;
constexpr std::int64_t kSmallestSegment = 32 << 10;
static_assert(GlooMesh::kHeaderBytes + GlooMesh::kPayloadBytes <= kSmallestSegment);

// A pair finds its buffers by slot, and both directions share the numbers.
constexpr int kCreditSlot = 0;
int slot_of(int number, int from, int to) {
  return 2 * number + (from < to ? 0 : 1);
}
int slot_of(GlooMesh::Channel channel, int from, int to) {
  return slot_of(kCreditSlot + 1 + static_cast<int>(channel), from, to);
}

std::int64_t segment_bytes_of(int members) {
  return std::clamp(kMemory / kWindow / (members - 1) / 4096 * 4096, kSmallestSegment,
                    kLargestSegment);
}

struct Head {
  std::uint32_t magic = 0x64737472;
  bool goodbye = false;
  Call call;
};
static_assert(sizeof(Head) <= GlooMesh::kHeaderBytes && std::is_trivially_copyable_v<Head>);

}  // namespace

/// One peer: its window here, and the count of what went each way.
struct GlooMesh::Link {
  std::vector<std::byte> window;
  std::byte credit_in{};
  std::byte credit_out{};
  std::unique_ptr<gloo::transport::Buffer> data_receiver;
  std::unique_ptr<gloo::transport::Buffer> credit_receiver;
  std::unique_ptr<gloo::transport::Buffer> credit_sender;
  std::int64_t sent = 0;
  std::int64_t may_send = kWindow;
  std::int64_t taken = 0;
  std::int64_t released = 0;
};

GlooMesh::GlooMesh(const std::shared_ptr<gloo::transport::Device>& device,
                   Group group,
                   std::chrono::milliseconds timeout)
    : group_(std::move(group)),
      segment_bytes_(segment_bytes_of(size())),
      context_(device->createContext(rank(), size())),
      staging_(static_cast<std::size_t>(kHeaderBytes + kPayloadBytes)) {
  for (int step = 1; step < size(); ++step) {
    peers_.push_back((rank() + step) % size());
  }
  context_->setTimeout(timeout);
}

GlooMesh::~GlooMesh() = default;

std::int64_t GlooMesh::buffer_bytes(int members) {
  return (members - 1) * kWindow * segment_bytes_of(members) + kHeaderBytes + kPayloadBytes;
}

// Gloo decides from the addresses which end of a pair connects. In ascending order, so that of all
// pairs that wait the lowest can always go on.
void GlooMesh::connect(Store& store, std::chrono::milliseconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  const Addresses addresses = meet(store, timeout);
  // Before the first connection: a member that has all of its own may send at once, and where there
  // is no buffer yet to receive into, Gloo's thread asks for one over and over.
  make_links();
  const Deadline guard(deadline, [this] { abort(); });
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) {
      continue;
    }
    try {
      context_->getPair(peer)->connect(addresses[static_cast<std::size_t>(peer)]);
    } catch (const std::exception& failure) {
      const std::string what =
          fmt::format("forming group \"{}\": cannot connect to rank {} (rank {} of the job)",
                      group_.name, peer, group_.members[static_cast<std::size_t>(peer)]);
      if (Clock::now() >= deadline) {
        throw Timeout(fmt::format("{} within {:.3g} s", what,
                                  std::chrono::duration<double>(timeout).count()));
      }
      throw PeerLost(fmt::format("{}: {}", what, failure.what()));
    }
  }
}

void GlooMesh::make_links() {
  links_.resize(static_cast<std::size_t>(size()));
  for (const int peer : peers_) {
    auto link = std::make_unique<Link>();
    auto& pair = context_->getPair(peer);
    link->window.resize(static_cast<std::size_t>(kWindow * segment_bytes_));
    link->data_receiver = pair->createRecvBuffer(slot_of(Channel::kWindow, peer, rank()),
                                                 link->window.data(), link->window.size());
    link->credit_receiver =
        pair->createRecvBuffer(slot_of(kCreditSlot, peer, rank()), &link->credit_in, 1);
    link->credit_sender =
        pair->createSendBuffer(slot_of(kCreditSlot, rank(), peer), &link->credit_out, 1);
    links_[static_cast<std::size_t>(peer)] = std::move(link);
  }
  staged_ = std::make_unique<Outgoing>(
      *this, staging_.data(), static_cast<std::int64_t>(staging_.size()), Channel::kWindow);
}

GlooMesh::Outgoing::Outgoing(GlooMesh& mesh, const void* data, std::int64_t bytes, Channel channel)
    : mesh_(mesh),
      data_(const_cast<void*>(data)),  // Gloo knows one kind of buffer; it only reads this one
      bytes_(static_cast<std::size_t>(bytes)),
      channel_(channel),
      buffers_(static_cast<std::size_t>(mesh.size())),
      unfinished_(static_cast<std::size_t>(mesh.size()), 0) {}

GlooMesh::Outgoing::~Outgoing() {
  if (std::any_of(unfinished_.begin(), unfinished_.end(), [](auto left) { return left > 0; })) {
    mesh_.abort();  // nothing may read this memory any more
  }
}

void GlooMesh::Outgoing::send(int peer, std::int64_t offset, std::int64_t bytes) {
  mesh_.last_peer_ = peer;
  const std::int64_t place = channel_ == Channel::kWindow ? mesh_.next_place(peer) : offset;
  auto& buffer = buffers_[static_cast<std::size_t>(peer)];
  if (buffer == nullptr) {
    buffer = mesh_.context_->getPair(peer)->createSendBuffer(slot_of(channel_, mesh_.rank(), peer),
                                                             data_, bytes_);
  }
  buffer->send(static_cast<std::size_t>(offset), static_cast<std::size_t>(bytes),
               static_cast<std::size_t>(place));
  ++unfinished_[static_cast<std::size_t>(peer)];
}

void GlooMesh::Outgoing::finish() {
  for (const int peer : mesh_.peers_) {
    mesh_.last_peer_ = peer;
    for (auto& left = unfinished_[static_cast<std::size_t>(peer)]; left > 0; --left) {
      buffers_[static_cast<std::size_t>(peer)]->waitSend();
    }
  }
}

GlooMesh::Incoming::Incoming(GlooMesh& mesh, void* data, std::int64_t bytes, Channel channel)
    : mesh_(mesh),
      data_(data),
      bytes_(static_cast<std::size_t>(bytes)),
      channel_(channel),
      buffers_(static_cast<std::size_t>(mesh.size())),
      expected_(static_cast<std::size_t>(mesh.size()), 0) {}

GlooMesh::Incoming::~Incoming() {
  if (std::any_of(expected_.begin(), expected_.end(), [](auto left) { return left > 0; })) {
    mesh_.abort();  // nothing may write this memory any more
  }
}

void GlooMesh::Incoming::open(int peer, std::int64_t messages) {
  if (messages > 0) {
    buffers_[static_cast<std::size_t>(peer)] = mesh_.context_->getPair(peer)->createRecvBuffer(
        slot_of(channel_, peer, mesh_.rank()), data_, bytes_);
    expected_[static_cast<std::size_t>(peer)] = messages;
  }
}

void GlooMesh::Incoming::wait_one(int peer) {
  mesh_.last_peer_ = peer;
  buffers_[static_cast<std::size_t>(peer)]->waitRecv();
  --expected_[static_cast<std::size_t>(peer)];
}

void GlooMesh::Incoming::finish() {
  for (const int peer : mesh_.peers_) {
    while (expected_[static_cast<std::size_t>(peer)] > 0) {
      wait_one(peer);
    }
  }
}

std::int64_t GlooMesh::next_place(int peer) {
  Link& link = *links_[static_cast<std::size_t>(peer)];
  while (link.sent >= link.may_send) {
    link.credit_receiver->waitRecv();
    link.may_send += kReleasesPerCredit;
  }
  return link.sent++ % kWindow * segment_bytes_;
}

void GlooMesh::stage(const Call& call, std::span<const std::byte> payload) {
  const Head head{.call = call};
  std::memcpy(staging_.data(), &head, sizeof head);
  if (!payload.empty()) {
    std::memcpy(staging_.data() + kHeaderBytes, payload.data(), payload.size());
  }
  staged_bytes_ = kHeaderBytes + static_cast<std::int64_t>(payload.size());
}

void GlooMesh::send_head(int peer) {
  staged_->send(peer, 0, staged_bytes_);
}

void GlooMesh::send_head_to_all() {
  for (const int peer : peers_) {
    send_head(peer);
  }
}

const std::byte* GlooMesh::receive_head(int peer, const Call& expected) {
  const std::byte* segment = receive(peer);
  Head head;
  std::memcpy(static_cast<void*>(&head), segment, sizeof head);
  if (head.goodbye) {
    throw PeerLost("it has left the group");
  }
  check(head.magic == Head{}.magic && head.call == expected,
        "group \"{}\": rank {} calls {} while rank {} calls {}", group_.name, rank(),
        expected.describe(), peer, head.call.describe());
  return segment + kHeaderBytes;
}

void GlooMesh::receive_head_from_all(const Call& expected) {
  for (const int peer : peers_) {
    receive_head(peer, expected);
    release(peer);
  }
}

const std::byte* GlooMesh::receive(int peer) {
  Link& link = *links_[static_cast<std::size_t>(peer)];
  last_peer_ = peer;
  link.data_receiver->waitRecv();
  return link.window.data() + link.taken++ % kWindow * segment_bytes_;
}

void GlooMesh::release(int peer) {
  Link& link = *links_[static_cast<std::size_t>(peer)];
  if (++link.released % kReleasesPerCredit == 0) {
    last_peer_ = peer;
    link.credit_sender->send(0, 1);
    link.credit_sender->waitSend();
  }
}

void GlooMesh::send_goodbye() {
  finish_heads();
  const Head head{.goodbye = true, .call = {}};
  std::memcpy(staging_.data(), &head, sizeof head);
  staged_bytes_ = kHeaderBytes;
  send_head_to_all();
}

void GlooMesh::await_goodbyes() {
  for (const int peer : peers_) {
    receive(peer);
  }
  finish_heads();
}

// A wait that is over before it began makes Gloo fail every pair of the context and wake whoever
// waits on one: the only way it offers that wakes them all.
void GlooMesh::abort() noexcept {
  try {
    std::byte nothing{};
    context_->createUnboundBuffer(&nothing, 1)->waitRecv(nullptr, std::chrono::milliseconds{0});
  } catch (const std::exception& done) {
    SPDLOG_TRACE("group {} closed: {}", group_.name, done.what());
  }
}

}  // namespace dstrain
