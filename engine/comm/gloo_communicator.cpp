// Ranks as processes, over TCP. Every collective is made of the mesh's segments (gloo_mesh.h).
//
// Reductions are pairwise, not a ring: everybody sends rank r its part of slice r, and r combines
// what came in rank order. A ring moves the same bytes, (size - 1) / size of the buffer each way,
// but adds in another order on every slice and rounds bf16 at every hop; this way the bits are
// those of LocalCommunicator, whatever the number of ranks. All-reduce in segments, the two halves
// overlapping:
//
//   send    R0 R1 G0 R2 G1 R3 G2 …       R: my part of the others' slices    G: my finished slice
//   receive    R0    R1 G0 R2 G1 …
#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <utility>

#include <gloo/transport/tcp/device.h>
#include <signal.h>
#include <spdlog/spdlog.h>

#include "engine/comm/block_signals.h"
#include "engine/comm/call.h"
#include "engine/comm/deadline.h"
#include "engine/comm/gloo_mesh.h"
#include "engine/comm/rank_order_reduce.h"
#include "engine/comm/rendezvous.h"
#include "engine/comm/solo_communicator.h"

namespace dstrain {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kDirectWireBytes = 64
                                          << 10;  // all-reduce in one hop up to here, for one rank
constexpr auto kGoodbyeDeadline = std::chrono::seconds(5);

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

/// A buffer cut into one slice a rank, and each slice into segments.
class Slices {
 public:
  Slices(std::int64_t elements, DType dtype, std::int64_t share, std::int64_t segment_bytes)
      : total_(elements * size_of(dtype)),
        share_(share * size_of(dtype)),
        segment_(segment_bytes / size_of(dtype) * size_of(dtype)) {}
  [[nodiscard]] std::int64_t steps() const { return (share_ + segment_ - 1) / segment_; }
  /// The step-th segment of a rank's slice; empty if the slice is shorter.
  [[nodiscard]] Range piece(int rank, std::int64_t step) const {
    const std::int64_t begin = std::min(rank * share_, total_);
    const std::int64_t end = std::min(begin + share_, total_);
    return {std::min(begin + step * segment_, end), std::min(begin + (step + 1) * segment_, end)};
  }

 private:
  std::int64_t total_;
  std::int64_t share_;
  std::int64_t segment_;
};

class GlooCommunicator final : public Communicator {
 public:
  GlooCommunicator(std::shared_ptr<GlooMesh> mesh, std::chrono::milliseconds timeout)
      : mesh_(std::move(mesh)), timeout_(timeout) {}

  [[nodiscard]] int rank() const override { return mesh_->rank(); }
  [[nodiscard]] int size() const override { return mesh_->size(); }
  [[nodiscard]] const std::string& name() const override { return mesh_->group().name; }

  void all_reduce(Tensor inout, ReduceOp op, Purpose purpose, Stream& stream) override {
    const Call call = all_reduce_call(inout, op, purpose);
    const bool direct = inout.bytes() <= GlooMesh::kPayloadBytes &&
                        inout.bytes() * (size() - 1) <= kDirectWireBytes;
    stream.run([=, this] {
      guarded(call, [&] { direct ? reduce_directly(call, inout) : reduce_in_slices(call, inout); });
    });
  }

  void reduce_scatter(
      ConstTensor in, Tensor out, ReduceOp op, Purpose purpose, Stream& stream) override {
    const Call call = reduce_scatter_call(in, out, op, purpose, size());
    stream.run([=, this] { guarded(call, [&] { scatter_reduced(call, in, out); }); });
  }

  void all_gather(ConstTensor in, Tensor out, Purpose purpose, Stream& stream) override {
    const Call call = all_gather_call(in, out, purpose, size());
    stream.run([=, this] { guarded(call, [&] { gather(call, in, out); }); });
  }

  void broadcast(Tensor inout, int root, Purpose purpose, Stream& stream) override {
    const Call call = broadcast_call(inout, root, purpose, size());
    stream.run([=, this] {
      guarded(call, [&] {
        inout.bytes() <= GlooMesh::kPayloadBytes ? broadcast_flat(call, inout)
                                                 : broadcast_chain(call, inout);
      });
    });
  }

  void exchange(std::span<const P2p> messages, Purpose purpose, Stream& stream) override {
    if (stream.is_inline()) {
      exchange_now(messages, purpose);
    } else {
      stream.enqueue([this, purpose, copy = std::vector<P2p>(messages.begin(), messages.end())] {
        exchange_now(copy, purpose);
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
  // One hop: everybody sends everything to everybody. For messages whose time is all latency.
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

  void reduce_in_slices(const Call& call, Tensor inout) {
    const Slices slices(inout.numel(), inout.dtype(), (inout.numel() + size() - 1) / size(),
                        mesh_->segment_bytes());
    GlooMesh::Outgoing out(*mesh_, inout.data(), inout.bytes());
    mesh_->stage(call);
    mesh_->send_head_to_all();
    send_parts(out, slices, 0);
    mesh_->receive_head_from_all(call);
    for (std::int64_t step = 0; step < slices.steps(); ++step) {
      send_parts(out, slices, step + 1);
      const Range mine = slices.piece(rank(), step);
      receive_parts(call, at(inout, mine.begin), at(inout, mine.begin), mine.bytes());
      send_slice(out, mine);
      receive_slices(inout, slices, step - 1);
    }
    receive_slices(inout, slices, slices.steps() - 1);
    out.finish();
    mesh_->finish_heads();
  }

  void scatter_reduced(const Call& call, ConstTensor in, Tensor result) {
    const Slices slices(in.numel(), in.dtype(), result.numel(), mesh_->segment_bytes());
    GlooMesh::Outgoing out(*mesh_, in.data(), in.bytes());
    mesh_->stage(call);
    mesh_->send_head_to_all();
    send_parts(out, slices, 0);
    mesh_->receive_head_from_all(call);
    const std::int64_t first = slices.piece(rank(), 0).begin;
    for (std::int64_t step = 0; step < slices.steps(); ++step) {
      send_parts(out, slices, step + 1);
      const Range mine = slices.piece(rank(), step);
      receive_parts(call, static_cast<const std::byte*>(in.data()) + mine.begin,
                    at(result, mine.begin - first), mine.bytes());
    }
    out.finish();
    mesh_->finish_heads();
  }

  void gather(const Call& call, ConstTensor in, Tensor result) {
    copy_bytes(at(result, rank() * in.bytes()), in.data(), in.bytes());
    if (in.bytes() <= GlooMesh::kPayloadBytes) {
      mesh_->stage(call, bytes_of(in));
      mesh_->send_head_to_all();
      for (const int peer : mesh_->peers()) {
        copy_bytes(at(result, peer * in.bytes()), mesh_->receive_head(peer, call), in.bytes());
        mesh_->release(peer);
      }
      mesh_->finish_heads();
      return;
    }
    const Slices slices(result.numel(), result.dtype(), in.numel(), mesh_->segment_bytes());
    GlooMesh::Outgoing out(*mesh_, result.data(), result.bytes());
    mesh_->stage(call);
    mesh_->send_head_to_all();
    send_slice(out, slices.piece(rank(), 0));
    mesh_->receive_head_from_all(call);
    for (std::int64_t step = 0; step < slices.steps(); ++step) {
      send_slice(out, slices.piece(rank(), step + 1));
      receive_slices(result, slices, step);
    }
    out.finish();
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

  // From rank to rank, each passing a segment on while the next one comes: every link carries the
  // buffer once, at the same time.
  void broadcast_chain(const Call& call, Tensor inout) {
    const int previous = (rank() + size() - 1) % size();
    const int next = (rank() + 1) % size();
    const bool is_first = rank() == call.root;
    const bool is_last = next == call.root;
    GlooMesh::Outgoing out(*mesh_, inout.data(), inout.bytes());
    if (!is_first) {
      mesh_->receive_head(previous, call);
      mesh_->release(previous);
    }
    if (!is_last) {
      mesh_->stage(call);
      mesh_->send_head(next);
    }
    const Slices slices(inout.numel(), inout.dtype(), inout.numel(), mesh_->segment_bytes());
    for (std::int64_t step = 0; step < slices.steps(); ++step) {
      const Range piece = slices.piece(0, step);
      if (!is_first) {
        copy_bytes(at(inout, piece.begin), mesh_->receive(previous), piece.bytes());
        mesh_->release(previous);
      }
      if (!is_last) {
        out.send(next, piece.begin, piece.bytes());
      }
    }
    out.finish();
    mesh_->finish_heads();
  }

  void send_parts(GlooMesh::Outgoing& out, const Slices& slices, std::int64_t step) {
    for (const int peer : mesh_->peers()) {
      const Range piece = slices.piece(peer, step);
      if (piece.bytes() > 0) {
        out.send(peer, piece.begin, piece.bytes());
      }
    }
  }

  /// result = own part and everybody's, in rank order. `result` may be `own`.
  void receive_parts(const Call& call,
                     const std::byte* own,
                     std::byte* result,
                     std::int64_t bytes) {
    if (bytes == 0) {
      return;
    }
    inputs_.assign(static_cast<std::size_t>(size()), own);
    for (const int peer : mesh_->peers()) {
      inputs_[static_cast<std::size_t>(peer)] = mesh_->receive(peer);
    }
    reduce_in_rank_order(inputs_, result, call.dtype, call.reduce, bytes / size_of(call.dtype));
    for (const int peer : mesh_->peers()) {
      mesh_->release(peer);
    }
  }

  void send_slice(GlooMesh::Outgoing& out, Range piece) {
    if (piece.bytes() > 0) {
      for (const int peer : mesh_->peers()) {
        out.send(peer, piece.begin, piece.bytes());
      }
    }
  }

  void receive_slices(Tensor result, const Slices& slices, std::int64_t step) {
    if (step < 0) {
      return;
    }
    for (const int peer : mesh_->peers()) {
      const Range piece = slices.piece(peer, step);
      if (piece.bytes() > 0) {
        copy_bytes(at(result, piece.begin), mesh_->receive(peer), piece.bytes());
        mesh_->release(peer);
      }
    }
  }

  // The i-th segment of everything to and from each peer, for all i: since every rank first sends
  // its i-th and then receives its i-th, somebody can always go on.
  void exchange_now(std::span<const P2p> messages, Purpose purpose) {
    struct Piece {
      std::size_t message;
      Range range;
    };
    struct Traffic {
      Call call{.op = Op::kExchange, .root = 0};  // root counts the messages
      std::vector<Piece> pieces;
    };
    std::vector<Traffic> sends(static_cast<std::size_t>(size()));
    std::vector<Traffic> receives(sends.size());
    std::size_t rounds = 0;
    std::int64_t total_bytes = 0;
    for (std::size_t i = 0; i < messages.size(); ++i) {
      const P2p& message = messages[i];
      check(message.peer >= 0 && message.peer < size() && message.peer != rank(),
            "exchange with rank {} in group \"{}\", on rank {} of {}", message.peer, name(), rank(),
            size());
      auto& side = message.kind == P2p::Kind::kSend ? sends : receives;
      Traffic& traffic = side[static_cast<std::size_t>(message.peer)];
      const std::int64_t bytes = message.tensor.bytes();
      traffic.call.purpose = purpose;
      traffic.call.elements += bytes;
      ++traffic.call.root;
      for (std::int64_t begin = 0; begin < bytes; begin += mesh_->segment_bytes()) {
        traffic.pieces.push_back({i, {begin, std::min(begin + mesh_->segment_bytes(), bytes)}});
      }
      rounds = std::max(rounds, traffic.pieces.size());
      total_bytes += bytes;
    }
    const Call whole{.op = Op::kExchange, .purpose = purpose, .elements = total_bytes};
    guarded(whole, [&] {
      std::vector<GlooMesh::Outgoing> out;
      out.reserve(messages.size());
      for (const P2p& message : messages) {
        out.emplace_back(*mesh_, message.tensor.data(), message.tensor.bytes());
      }
      for (const int peer : mesh_->peers()) {
        if (const Call& call = sends[static_cast<std::size_t>(peer)].call; call.root > 0) {
          mesh_->finish_heads();  // each peer is told something else
          mesh_->stage(call);
          mesh_->send_head(peer);
        }
      }
      for (const int peer : mesh_->peers()) {
        if (const Call& call = receives[static_cast<std::size_t>(peer)].call; call.root > 0) {
          mesh_->receive_head(peer, call);
          mesh_->release(peer);
        }
      }
      for (std::size_t round = 0; round < rounds; ++round) {
        for (const int peer : mesh_->peers()) {
          const auto& pieces = sends[static_cast<std::size_t>(peer)].pieces;
          if (round < pieces.size()) {
            const auto& [message, range] = pieces[round];
            out[message].send(peer, range.begin, range.bytes());
          }
        }
        for (const int peer : mesh_->peers()) {
          const auto& pieces = receives[static_cast<std::size_t>(peer)].pieces;
          if (round < pieces.size()) {
            const auto& [message, range] = pieces[round];
            copy_bytes(at(messages[message].tensor, range.begin), mesh_->receive(peer),
                       range.bytes());
            mesh_->release(peer);
          }
        }
      }
      for (auto& outgoing : out) {
        outgoing.finish();
      }
      mesh_->finish_heads();
    });
  }

  // One operation of this group at a time. Whatever fails ends the group for everybody.
  template <typename Work>
  void guarded(const Call& call, Work&& work) {
    const std::lock_guard lock(mutex_);
    const Clock::time_point start = Clock::now();
    try {
      if (aborted_) {
        throw PeerLost("the group was aborted");
      }
      work();
    } catch (const InternalError&) {
      abort();
      throw;
    } catch (const std::exception& failure) {
      const bool was_aborted = aborted_;
      abort();
      fail(call, Clock::now() - start, was_aborted, failure.what());
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
    if (const auto end = reason.find("] "); reason.starts_with('[') && end != reason.npos) {
      reason.remove_prefix(end + 2);  // Gloo's own file and line
    }
    throw PeerLost(fmt::format("{}: lost {} after {:.3g} s: {}", where, who, seconds, reason));
  }

  const std::shared_ptr<GlooMesh> mesh_;  // shared with the rendezvous, which says goodbye
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::atomic<bool> aborted_{false};
  std::vector<const void*> inputs_;
};

class GlooRendezvous final : public Rendezvous {
 public:
  GlooRendezvous(int world_rank, int world_size, Store& store, GlooOptions options)
      : world_rank_(world_rank),
        world_size_(world_size),
        store_(store),
        options_(std::move(options)) {
    check(world_size_ >= 1 && world_rank_ >= 0 && world_rank_ < world_size_, "rank {} of {}",
          world_rank_, world_size_);
  }

  // A connection that closes right behind its last message would lose the peer that message: Gloo
  // reports the end first. So members leave together, or after a deadline.
  ~GlooRendezvous() override {
    const auto close_all = [this] {
      for (const auto& mesh : meshes_) {
        mesh->abort();
      }
    };
    try {
      const Deadline guard(Clock::now() + kGoodbyeDeadline, close_all);
      for (const auto& mesh : meshes_) {
        mesh->send_goodbye();
      }
      for (const auto& mesh : meshes_) {
        mesh->await_goodbyes();
      }
    } catch (const std::exception& failure) {  // a peer that failed is gone already
      spdlog::debug("leaving the job reason=\"{}\"", failure.what());
      close_all();
    }
  }

  [[nodiscard]] int world_rank() const override { return world_rank_; }
  [[nodiscard]] int world_size() const override { return world_size_; }

  std::unique_ptr<Communicator> make_group(const std::string& name,
                                           std::span<const int> members) override {
    const int rank = rank_in_group(*this, name, members);
    if (members.size() == 1) {
      return make_solo_communicator(name);
    }
    auto mesh = std::make_shared<GlooMesh>(
        device(), store_,
        GlooMesh::Group{.name = name, .members = {members.begin(), members.end()}, .rank = rank},
        options_.timeout, options_.connect_timeout);
    meshes_.push_back(mesh);
    return std::make_unique<GlooCommunicator>(std::move(mesh), options_.timeout);
  }

 private:
  /// Made with the first group that needs it: a job of one rank opens no socket.
  std::shared_ptr<gloo::transport::Device>& device() {
    if (device_ == nullptr) {
      ignore_broken_pipes();
      const BlockSignals block;  // it starts a thread
      gloo::transport::tcp::attr attributes(options_.interface_address.c_str());
      device_ = gloo::transport::tcp::CreateDevice(attributes);
    }
    return device_;
  }

  static void ignore_broken_pipes() {
    struct sigaction action {};
    sigaction(SIGPIPE, nullptr, &action);
    if (action.sa_handler == SIG_DFL) {
      action.sa_handler = SIG_IGN;
      sigaction(SIGPIPE, &action, nullptr);
    }
  }

  const int world_rank_;
  const int world_size_;
  Store& store_;
  const GlooOptions options_;
  std::shared_ptr<gloo::transport::Device> device_;
  std::vector<std::shared_ptr<GlooMesh>> meshes_;
};

}  // namespace

std::unique_ptr<Rendezvous> make_gloo_rendezvous(int world_rank,
                                                 int world_size,
                                                 Store& store,
                                                 GlooOptions options) {
  return std::make_unique<GlooRendezvous>(world_rank, world_size, store, std::move(options));
}

}  // namespace dstrain
