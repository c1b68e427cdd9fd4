#include "engine/comm/host_communicator.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/comm/across_hosts.h"
#include "engine/comm/call.h"
#include "engine/comm/rank_order_reduce.h"

namespace dstrain {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kDirectWireBytes = 64
                                          << 10;  // all-reduce in one hop up to here, for one rank

/// Bytes [begin, end) of a buffer.
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  [[nodiscard]] std::int64_t bytes() const { return end - begin; }
};

std::byte* at(Tensor tensor, std::int64_t bytes) {
  return static_cast<std::byte*>(tensor.data()) + bytes;
}

void copy_bytes(void* to, const void* from, std::int64_t bytes) {
  if (to != from && bytes > 0) {
    std::memmove(to, from, static_cast<std::size_t>(bytes));
  }
}

std::span<const std::byte> bytes_of(ConstTensor tensor) {
  return {static_cast<const std::byte*>(tensor.data()), static_cast<std::size_t>(tensor.bytes())};
}

/// A buffer cut into one slice per rank, and each slice into segments.
class Slices {
 public:
  Slices(std::int64_t elements, DType dtype, std::int64_t share, std::int64_t segment_bytes)
      : total_(elements * size_of(dtype)),
        share_(share * size_of(dtype)),
        segment_(segment_bytes / size_of(dtype) * size_of(dtype)) {}
  /// Segments of a rank's slice. Rank 0 has no fewer than any other.
  [[nodiscard]] std::int64_t steps(int rank) const {
    return (slice(rank).bytes() + segment_ - 1) / segment_;
  }
  /// The step-th segment of a rank's slice; empty if the slice is shorter.
  [[nodiscard]] Range piece(int rank, std::int64_t step) const {
    const auto [begin, end] = slice(rank);
    return {std::min(begin + step * segment_, end), std::min(begin + (step + 1) * segment_, end)};
  }

 private:
  [[nodiscard]] Range slice(int rank) const {
    const std::int64_t begin = std::min(rank * share_, total_);
    return {begin, std::min(begin + share_, total_)};
  }
  std::int64_t total_;
  std::int64_t share_;
  std::int64_t segment_;
};

/// A group's name for as long as this thread's trace goes on.
std::string_view kept_name(const std::string& group) {
  TraceLog* const log = TraceLog::of_this_thread();
  return log == nullptr ? std::string_view{} : log->keep(group);
}

class HostCommunicator final : public Communicator {
 public:
  HostCommunicator(std::shared_ptr<PeerMesh> mesh,
                   std::chrono::milliseconds timeout,
                   ActivityRecorder* activity)
      : mesh_(std::move(mesh)),
        timeout_(timeout),
        across_hosts_(*mesh_),
        activity_(activity),
        activity_group_(activity == nullptr ? 0 : activity->add_group(mesh_->group().name)),
        name_(kept_name(mesh_->group().name)),
        sent_(static_cast<std::size_t>(mesh_->size())),
        received_(sent_) {}

  [[nodiscard]] int rank() const override { return mesh_->rank(); }
  [[nodiscard]] int size() const override { return mesh_->size(); }
  [[nodiscard]] const std::string& name() const override { return mesh_->group().name; }

  void all_reduce(Tensor inout, ReduceOp op, Purpose purpose, Stream& stream) override {
    const Call call = all_reduce_call(inout, op, purpose);
    const bool direct = inout.bytes() <= PeerMesh::kPayloadBytes &&
                        inout.bytes() * (size() - 1) <= kDirectWireBytes;
    in_order(stream, [=, this] {
      guarded(call, [&] {
        if (direct) {
          reduce_directly(call, inout);
        } else if (across_hosts_.suits_all_reduce(call.dtype)) {
          across_hosts_.all_reduce(call, inout);
        } else {
          reduce_in_slices(call, inout);
        }
      });
    });
  }

  void reduce_scatter(
      ConstTensor in, Tensor out, ReduceOp op, Purpose purpose, Stream& stream) override {
    const Call call = reduce_scatter_call(in, out, op, purpose, size());
    in_order(stream, [=, this] {
      guarded(call, [&] {
        across_hosts_.suits_reduce_scatter(call.dtype) ? across_hosts_.reduce_scatter(call, in, out)
                                                       : scatter_reduced(call, in, out);
      });
    });
  }

  void all_gather(ConstTensor in, Tensor out, Purpose purpose, Stream& stream) override {
    const Call call = all_gather_call(in, out, purpose, size());
    in_order(stream, [=, this] { guarded(call, [&] { gather(call, in, out); }); });
  }

  void broadcast(Tensor inout, int root, Purpose purpose, Stream& stream) override {
    const Call call = broadcast_call(inout, root, purpose, size());
    in_order(stream, [=, this] {
      guarded(call, [&] {
        inout.bytes() <= PeerMesh::kPayloadBytes ? broadcast_flat(call, inout)
                                                 : broadcast_chain(call, inout);
      });
    });
  }

  void all_to_all(ConstTensor in,
                  std::span<const std::int64_t> sent,
                  Tensor out,
                  std::span<const std::int64_t> received,
                  Purpose purpose,
                  Stream& stream) override {
    const AllToAllParts all = all_to_all_parts(in, sent, out, received, purpose, *this);
    in_order(stream, [this, all] {
      copy_bytes(all.kept_out.data(), all.kept_in.data(), all.kept_in.bytes());
      exchange_now(all.messages, all.call);
    });
  }

  void exchange(std::span<const P2p> messages, Purpose purpose, Stream& stream) override {
    const Call call{.op = Op::kExchange, .purpose = purpose};
    if (stream.is_inline()) {
      exchange_now(messages, call);
    } else {
      stream.enqueue([this, call, copy = std::vector<P2p>(messages.begin(), messages.end())] {
        exchange_now(copy, call);
      });
    }
  }

  void barrier() override {
    const Call call;
    guarded(call, [&] {
      mesh_->stage(call);
      mesh_->send_head_to_all();
      mesh_->receive_head_from_all(call);
      mesh_->finish_heads();
    });
  }

  void abort() noexcept override {
    aborted_ = true;
    mesh_->abort();
  }

 private:
  /// Runs `work`, which says itself in a trace what it is.
  template <typename Work>
  static void in_order(Stream& stream, Work&& work) {
    if (stream.is_inline()) {
      work();
    } else {
      stream.enqueue(std::forward<Work>(work));
    }
  }

  // Reduces in one hop, in which each rank sends everything to all others. It is for messages whose
  // time is all latency.
  void reduce_directly(const Call& call, Tensor inout) {
    mesh_->stage(call, bytes_of(inout));
    mesh_->send_head_to_all();
    std::vector<const void*> inputs(static_cast<std::size_t>(size()), inout.data());
    for (const int peer : mesh_->peers()) {
      inputs[static_cast<std::size_t>(peer)] = mesh_->receive_head(peer, call);
    }
    reduce_in_rank_order(inputs, inout.data(), inout.dtype(), call.reduce, inout.numel());
    for (const int peer : mesh_->peers()) {
      mesh_->release(peer);
    }
    mesh_->finish_heads();
  }

  // A part that goes to a peer of this host comes back in the same segment, reduced. Others send
  // what they have reduced to where it belongs.
  void reduce_in_slices(const Call& call, Tensor inout) {
    const Slices slices(inout.numel(), inout.dtype(), (inout.numel() + size() - 1) / size(),
                        mesh_->segment_bytes());
    auto parts = PeerMesh::Outgoing::for_return(*mesh_, inout.data());
    PeerMesh::Outgoing finished(*mesh_, inout.data(), Channel::kDirect);
    PeerMesh::Incoming others(*mesh_, inout.data(), inout.bytes(), Channel::kDirect);
    for (const int peer : mesh_->peers()) {
      if (!mesh_->returns_segments(peer)) {
        others.open(peer, slices.steps(peer));
      }
    }
    mesh_->stage(call);
    mesh_->send_head_to_all();
    send_first_parts(parts, slices);
    mesh_->receive_head_from_all(call);
    for (std::int64_t step = 0; step < slices.steps(rank()); ++step) {
      send_parts(parts, slices, step + PeerMesh::kLookAhead);
      const Range mine = slices.piece(rank(), step);
      receive_parts(call, at(inout, mine.begin), at(inout, mine.begin), mine.bytes(),
                    Answer::kResult);
      for (const int peer : mesh_->peers()) {
        if (!mesh_->returns_segments(peer)) {
          finished.send(peer, mine.begin, mine.bytes());
        }
      }
    }
    send_last_parts(parts, slices);
    others.finish();
    parts.finish();
    finished.finish();
    mesh_->finish_heads();
  }

  void scatter_reduced(const Call& call, ConstTensor in, Tensor result) {
    const Slices slices(in.numel(), in.dtype(), result.numel(), mesh_->segment_bytes());
    PeerMesh::Outgoing parts(*mesh_, in.data(), Channel::kWindow);
    mesh_->stage(call);
    mesh_->send_head_to_all();
    send_first_parts(parts, slices);
    mesh_->receive_head_from_all(call);
    const std::int64_t first = slices.piece(rank(), 0).begin;
    for (std::int64_t step = 0; step < slices.steps(rank()); ++step) {
      send_parts(parts, slices, step + PeerMesh::kLookAhead);
      const Range mine = slices.piece(rank(), step);
      receive_parts(call, static_cast<const std::byte*>(in.data()) + mine.begin,
                    at(result, mine.begin - first), mine.bytes(), Answer::kNothing);
    }
    parts.finish();
    mesh_->finish_heads();
  }

  void gather(const Call& call, ConstTensor in, Tensor result) {
    copy_bytes(at(result, rank() * in.bytes()), in.data(), in.bytes());
    if (in.bytes() <= PeerMesh::kPayloadBytes) {
      mesh_->stage(call, bytes_of(in));
      mesh_->send_head_to_all();
      for (const int peer : mesh_->peers()) {
        copy_bytes(at(result, peer * in.bytes()), mesh_->receive_head(peer, call), in.bytes());
        mesh_->release(peer);
      }
      mesh_->finish_heads();
      return;
    }
    if (across_hosts_.suits_all_gather()) {
      across_hosts_.all_gather(call, result);
      return;
    }
    const Slices slices(result.numel(), result.dtype(), in.numel(), mesh_->segment_bytes());
    PeerMesh::Outgoing mine(*mesh_, result.data(), Channel::kDirect);
    PeerMesh::Incoming others(*mesh_, result.data(), result.bytes(), Channel::kDirect);
    open_slices(others, slices);
    mesh_->stage(call);
    mesh_->send_head_to_all();
    mesh_->receive_head_from_all(call);
    for (std::int64_t step = 0; step < slices.steps(rank()); ++step) {
      send_slice(mine, slices.piece(rank(), step));
    }
    others.finish();
    mine.finish();
    mesh_->finish_heads();
  }

  void broadcast_flat(const Call& call, Tensor inout) {
    if (rank() == call.root) {
      mesh_->stage(call, bytes_of(inout));
      mesh_->send_head_to_all();
      mesh_->finish_heads();
    } else {
      copy_bytes(inout.data(), mesh_->receive_head(call.root, call), inout.bytes());
      mesh_->release(call.root);
    }
  }

  // Goes from rank to rank, each passing a segment on while the next one arrives: every link
  // carries the buffer once, all at the same time. The head goes the other way: "my tensor is
  // open".
  void broadcast_chain(const Call& call, Tensor inout) {
    const int previous = (rank() + size() - 1) % size();
    const int next = (rank() + 1) % size();
    const bool is_first = rank() == call.root;
    const bool is_last = next == call.root;
    const Slices slices(inout.numel(), inout.dtype(), inout.numel(), mesh_->segment_bytes());
    PeerMesh::Outgoing out(*mesh_, inout.data(), Channel::kDirect);
    PeerMesh::Incoming in(*mesh_, inout.data(), inout.bytes(), Channel::kDirect);
    if (!is_first) {
      in.open(previous, slices.steps(0));
      mesh_->stage(call);
      mesh_->send_head(previous);
    }
    if (!is_last) {
      mesh_->receive_head(next, call);
      mesh_->release(next);
    }
    for (std::int64_t step = 0; step < slices.steps(0); ++step) {
      const Range piece = slices.piece(0, step);
      if (!is_first) {
        in.wait_one(previous);
      }
      if (!is_last) {
        out.send(next, piece.begin, piece.bytes());
      }
    }
    out.finish();
    mesh_->finish_heads();
  }

  void send_first_parts(PeerMesh::Outgoing& out, const Slices& slices) {
    for (std::int64_t step = 0; step < PeerMesh::kLookAhead; ++step) {
      send_parts(out, slices, step);
    }
  }

  /// Sends the last segments where this rank's own slice has fewer than another's.
  void send_last_parts(PeerMesh::Outgoing& out, const Slices& slices) {
    for (std::int64_t step = slices.steps(rank()); step < slices.steps(0); ++step) {
      send_parts(out, slices, step + PeerMesh::kLookAhead);
    }
  }

  void open_slices(PeerMesh::Incoming& in, const Slices& slices) {
    for (const int peer : mesh_->peers()) {
      in.open(peer, slices.steps(peer));
    }
  }

  void send_parts(PeerMesh::Outgoing& out, const Slices& slices, std::int64_t step) {
    for (const int peer : mesh_->peers()) {
      const Range piece = slices.piece(peer, step);
      if (piece.bytes() > 0) {
        out.send(peer, piece.begin, piece.bytes());
      }
    }
  }

  enum class Answer : std::uint8_t { kNothing, kResult };
  /// result = own part and those of all others, in rank order. `result` may be `own`. As an answer
  /// it also goes back to the peers that get their segments back.
  void receive_parts(const Call& call,
                     const std::byte* own,
                     std::byte* result,
                     std::int64_t bytes,
                     Answer answer) {
    if (bytes == 0) {
      return;
    }
    inputs_.assign(static_cast<std::size_t>(size()), own);
    answers_.clear();
    for (const int peer : mesh_->peers()) {
      std::byte* const segment = mesh_->receive(peer);
      inputs_[static_cast<std::size_t>(peer)] = segment;
      if (answer == Answer::kResult && mesh_->returns_segments(peer)) {
        answers_.push_back(segment);
      }
    }
    reduce_in_rank_order(inputs_, result, call.dtype, call.reduce, bytes / size_of(call.dtype),
                         answers_);
    for (const int peer : mesh_->peers()) {
      if (answer == Answer::kResult && mesh_->returns_segments(peer)) {
        mesh_->give_back(peer);
      } else {
        mesh_->release(peer);
      }
    }
  }

  void send_slice(PeerMesh::Outgoing& out, Range piece) {
    if (piece.bytes() > 0) {
      for (const int peer : mesh_->peers()) {
        out.send(peer, piece.begin, piece.bytes());
      }
    }
  }

  // Each rank opens the tensors that it receives into and says so to the senders, with a head; then
  // it sends to each peer, as soon as that peer's head has arrived. No rank waits for anything but
  // a peer's arrival.
  void exchange_now(std::span<const P2p> messages, const Call& what) {
    Call whole{.op = what.op, .purpose = what.purpose, .root = 0};  // root counts the messages
    std::vector<Call> sends(static_cast<std::size_t>(size()), whole);
    std::vector<Call> receives = sends;
    std::vector<Channel> channels;
    for (const P2p& message : messages) {
      check(message.peer >= 0 && message.peer < size() && message.peer != rank(),
            "exchange with rank {} in group \"{}\", on rank {} of {}", message.peer, name(), rank(),
            size());
      auto& calls = message.kind == P2p::Kind::kSend ? sends : receives;
      Call& call = calls[static_cast<std::size_t>(message.peer)];
      channels.push_back(direct_channel(call.root++));
      call.elements += message.tensor.bytes();
      whole.elements += message.tensor.bytes();
    }
    guarded(whole, [&] {
      const std::int64_t segment = mesh_->segment_bytes();
      if (what.op == Op::kExchange) number_messages(messages, P2p::Kind::kSend);
      std::vector<PeerMesh::Outgoing> out;
      std::vector<PeerMesh::Incoming> in;
      out.reserve(messages.size());
      in.reserve(messages.size());
      for (std::size_t i = 0; i < messages.size(); ++i) {
        const Tensor& tensor = messages[i].tensor;
        if (messages[i].kind == P2p::Kind::kReceive) {
          in.emplace_back(*mesh_, tensor.data(), tensor.bytes(), channels[i]);
          in.back().open(messages[i].peer, (tensor.bytes() + segment - 1) / segment);
        }
      }
      for (const int peer : mesh_->peers()) {
        if (const Call& call = receives[static_cast<std::size_t>(peer)]; call.root > 0) {
          mesh_->finish_heads();  // each peer gets a different one
          mesh_->stage(call);
          mesh_->send_head(peer);
        }
      }
      for (const int peer : mesh_->peers()) {
        if (const Call& call = sends[static_cast<std::size_t>(peer)]; call.root > 0) {
          mesh_->receive_head(peer, call);
          mesh_->release(peer);
          for (std::size_t i = 0; i < messages.size(); ++i) {
            if (messages[i].kind == P2p::Kind::kSend && messages[i].peer == peer) {
              const Tensor& tensor = messages[i].tensor;
              out.emplace_back(*mesh_, tensor.data(), channels[i]);
              for (std::int64_t begin = 0; begin < tensor.bytes(); begin += segment) {
                out.back().send(peer, begin, std::min(segment, tensor.bytes() - begin));
              }
            }
          }
        }
      }
      for (auto& incoming : in) {
        incoming.finish();
      }
      for (auto& outgoing : out) {
        outgoing.finish();
      }
      mesh_->finish_heads();
      if (what.op == Op::kExchange) number_messages(messages, P2p::Kind::kReceive);
    });
  }

  /// Counts the messages of one direction, by which a trace joins both ends of each.
  void number_messages(std::span<const P2p> messages, P2p::Kind kind) {
    TraceLog* const log = TraceLog::recording();
    const bool sends = kind == P2p::Kind::kSend;
    for (const P2p& message : messages) {
      if (message.kind != kind) continue;
      const auto peer = static_cast<std::size_t>(message.peer);
      const std::int64_t number = (sends ? sent_ : received_)[peer]++;
      if (log == nullptr) continue;
      const std::int64_t now = TraceLog::now();
      log->add({.kind = sends ? TraceKind::kSent : TraceKind::kReceived,
                .name = sends ? "send" : "receive",
                .begin_ns = now,
                .end_ns = now,
                .number = number,
                .bytes = message.tensor.bytes(),
                .group = name_,
                .peer = mesh_->group().members[peer]});
    }
  }

  // Runs one operation of this group at a time. Any failure ends the group for all members.
  template <typename Work>
  void guarded(const Call& call, Work&& work) {
    const std::lock_guard lock(mutex_);
    const CollectiveScope told(activity_, activity_group_, call.op, call.purpose);
    const TraceSpan span({.kind = TraceKind::kCollective,
                          .name = name_of(call.op),
                          .bytes = call.bytes(),
                          .group = name_,
                          .purpose = name_of(call.purpose),
                          .ranks = size()});
    const Clock::time_point start = Clock::now();
    try {
      if (aborted_) {
        throw PeerLost("the group was aborted");
      }
      work();
      if (activity_ != nullptr) tell_transfer_waits();
    } catch (const InternalError&) {
      abort();
      throw;
    } catch (const std::exception& failure) {
      const bool was_aborted = aborted_;
      abort();
      fail(call, Clock::now() - start, was_aborted, failure.what());
    }
  }

  void tell_transfer_waits() {
    for (const int peer : mesh_->peers()) {
      const double seconds = mesh_->take_transfer_wait(peer);
      if (seconds > 0.0) {
        activity_->add_transfer_wait(mesh_->group().members[static_cast<std::size_t>(peer)],
                                     seconds);
      }
    }
  }

  [[noreturn]] void fail(const Call& call,
                         Clock::duration elapsed,
                         bool was_aborted,
                         std::string_view reason) const {
    const double seconds = std::chrono::duration<double>(elapsed).count();
    const int peer = mesh_->last_peer();
    const std::string where = fmt::format("{} ({} bytes) in group \"{}\" on rank {} of {}",
                                          call.describe(), call.bytes(), name(), rank(), size());
    const std::string who = fmt::format("rank {} (rank {} of the job)", peer,
                                        mesh_->group().members[static_cast<std::size_t>(peer)]);
    if (was_aborted) {
      throw PeerLost(fmt::format("{}: the group was aborted, after {:.3g} s", where, seconds));
    }
    if (elapsed >= timeout_) {
      throw Timeout(fmt::format("{}: nothing from {} for {:.3g} s", where, who, seconds));
    }
    throw PeerLost(fmt::format("{}: lost {} after {:.3g} s: {}", where, who, seconds, reason));
  }

  const std::shared_ptr<PeerMesh> mesh_;  // shared with the rendezvous, which says goodbye
  const std::chrono::milliseconds timeout_;
  AcrossHosts across_hosts_;
  ActivityRecorder* const activity_;
  const int activity_group_;
  const std::string_view name_;  ///< in traces
  /// Messages of exchanges so far, by peer.
  std::vector<std::int64_t> sent_;
  std::vector<std::int64_t> received_;
  std::mutex mutex_;
  std::atomic<bool> aborted_{false};
  std::vector<const void*> inputs_;
  std::vector<void*> answers_;
};

}  // namespace

std::unique_ptr<Communicator> make_host_communicator(std::shared_ptr<PeerMesh> mesh,
                                                     std::chrono::milliseconds timeout,
                                                     ActivityRecorder* activity) {
  return std::make_unique<HostCommunicator>(std::move(mesh), timeout, activity);
}

}  // namespace dstrain
