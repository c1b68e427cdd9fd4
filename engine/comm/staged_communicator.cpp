#include "engine/comm/staged_communicator.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/comm/call.h"
#include "kernels/core/caller_stream.h"

namespace dstrain {
namespace {

class StagedCommunicator final : public Communicator {
 public:
  StagedCommunicator(std::unique_ptr<Communicator> host, std::shared_ptr<StagingMemory> staging)
      : host_(std::move(host)), staging_(std::move(staging)), device_(staging_->device()) {}

  [[nodiscard]] int rank() const override { return host_->rank(); }
  [[nodiscard]] int size() const override { return host_->size(); }
  [[nodiscard]] const std::string& name() const override { return host_->name(); }

  void all_reduce(Tensor inout, ReduceOp op, Purpose purpose, Stream& stream) override {
    (void)all_reduce_call(inout, op, purpose);
    for_each_chunk(inout, 1, [&](Range part, std::byte* memory) {
      const Tensor chunk = inout.flat(part.begin, part.end);
      const Tensor staged(memory, inout.dtype(), chunk.shape());
      fetch({{chunk, staged}}, stream);
      host_->all_reduce(staged, op, purpose, caller_);
      give({{staged, chunk}}, stream);
    });
  }

  /// A chunk is the same part of every rank's slice. Nothing is written to `in` that a later chunk
  /// reads, where `out` is a slice of it.
  void reduce_scatter(
      ConstTensor in, Tensor out, ReduceOp op, Purpose purpose, Stream& stream) override {
    (void)reduce_scatter_call(in, out, op, purpose, size());
    for_each_chunk(out, size(), [&](Range part, std::byte* memory) {
      const std::int64_t elements = part.end - part.begin;
      const Tensor staged(memory, in.dtype(), Shape{size() * elements});
      std::vector<Copy> copies;
      for (int member = 0; member < size(); ++member) {
        copies.push_back({slice(in, member, part), slice(staged, member, {0, elements})});
      }
      fetch(copies, stream);
      const Tensor mine = slice(staged, rank(), {0, elements});
      host_->reduce_scatter(staged, mine, op, purpose, caller_);
      give({{mine, out.flat(part.begin, part.end)}}, stream);
    });
  }

  void all_gather(ConstTensor in, Tensor out, Purpose purpose, Stream& stream) override {
    (void)all_gather_call(in, out, purpose, size());
    for_each_chunk(in, size(), [&](Range part, std::byte* memory) {
      const std::int64_t elements = part.end - part.begin;
      const Tensor staged(memory, in.dtype(), Shape{size() * elements});
      const Tensor mine = slice(staged, rank(), {0, elements});
      fetch({{in.flat(part.begin, part.end), mine}}, stream);
      host_->all_gather(mine, staged, purpose, caller_);
      std::vector<Copy> copies;
      for (int member = 0; member < size(); ++member) {
        copies.push_back({slice(staged, member, {0, elements}), slice(out, member, part)});
      }
      give(copies, stream);
    });
  }

  void broadcast(Tensor inout, int root, Purpose purpose, Stream& stream) override {
    (void)broadcast_call(inout, root, purpose, size());
    for_each_chunk(inout, 1, [&](Range part, std::byte* memory) {
      const Tensor chunk = inout.flat(part.begin, part.end);
      const Tensor staged(memory, inout.dtype(), chunk.shape());
      if (rank() == root) {
        fetch({{chunk, staged}}, stream);
      }
      host_->broadcast(staged, root, purpose, caller_);
      if (rank() != root) {
        give({{staged, chunk}}, stream);
      }
    });
  }

  /// Runs as an exchange, since members need not have the same number of rounds.
  void all_to_all(ConstTensor in,
                  std::span<const std::int64_t> sent,
                  Tensor out,
                  std::span<const std::int64_t> received,
                  Purpose purpose,
                  Stream& stream) override {
    const AllToAllParts all = all_to_all_parts(in, sent, out, received, purpose, *this);
    device_.copy(all.kept_in, all.kept_out, stream);
    exchange(all.messages, purpose, stream);
  }

  /// Goes in rounds: round k has the k-th piece of every message that has so many. Two ranks cut a
  /// message between them alike, so the k-th round of one needs the k-th of the other and no other.
  void exchange(std::span<const P2p> messages, Purpose purpose, Stream& stream) override {
    std::int64_t longest = 0;
    for (const P2p& message : messages) {
      longest = std::max(longest, message.tensor.bytes());
    }
    const std::int64_t step = staging_->piece_bytes();
    std::byte* const memory = staging_->take(static_cast<std::int64_t>(messages.size()) * step);
    for (std::int64_t begin = 0; begin == 0 || begin < longest; begin += step) {
      exchange_round(messages, begin, memory, purpose, stream);
    }
  }

  void barrier() override { host_->barrier(); }
  void abort() noexcept override { host_->abort(); }

 private:
  struct Range {
    std::int64_t begin;
    std::int64_t end;
  };
  struct Copy {
    ConstTensor from;
    Tensor to;
  };

  /// `part` of a member's slice.
  template <typename AnyTensor>
  [[nodiscard]] AnyTensor slice(AnyTensor whole, int member, Range part) const {
    const std::int64_t share = whole.numel() / size();
    return whole.flat(member * share + part.begin, member * share + part.end);
  }

  /// Calls visit(elements of `share`, memory for `copies` times as many) for one chunk after the
  /// other; once if there is no element, as the other members make the call too.
  template <typename Visit>
  void for_each_chunk(ConstTensor share, int copies, Visit&& visit) {
    const std::int64_t element = size_of(share.dtype()) * copies;
    const std::int64_t step = std::max<std::int64_t>(1, staging_->chunk_bytes() / element);
    std::byte* const memory = staging_->take(std::min(step, share.numel()) * element);
    for (std::int64_t begin = 0; begin == 0 || begin < share.numel(); begin += step) {
      visit(Range{begin, std::min(begin + step, share.numel())}, memory);
    }
  }

  /// Copies to the host; done on return.
  void fetch(const std::vector<Copy>& copies, Stream& stream) {
    for (const Copy& copy : copies) {
      device_.copy_to_host(copy.from, copy.to.data(), stream);
    }
    stream.synchronize();
  }
  /// Copies to the device; done on return, as the host's memory is used again.
  void give(const std::vector<Copy>& copies, Stream& stream) {
    for (const Copy& copy : copies) {
      device_.copy_from_host(copy.from.data(), copy.to, stream);
    }
    stream.synchronize();
  }

  void exchange_round(std::span<const P2p> messages,
                      std::int64_t begin,
                      std::byte* memory,
                      Purpose purpose,
                      Stream& stream) {
    std::vector<P2p> staged;
    std::vector<Copy> sent;
    std::vector<Copy> received;
    for (const P2p& message : messages) {
      const std::int64_t bytes = message.tensor.bytes();
      if (begin > 0 && begin >= bytes) {
        continue;
      }
      const std::int64_t size = std::min(staging_->piece_bytes(), bytes - begin);
      const Tensor piece(static_cast<std::byte*>(message.tensor.data()) + begin, DType::kU8,
                         Shape{size});
      const Tensor place(memory, DType::kU8, Shape{size});
      memory += staging_->piece_bytes();
      staged.push_back({message.kind, message.peer, place});
      if (message.kind == P2p::Kind::kSend) {
        sent.push_back({piece, place});
      } else {
        received.push_back({place, piece});
      }
    }
    fetch(sent, stream);
    host_->exchange(staged, purpose, caller_);
    give(received, stream);
  }

  const std::unique_ptr<Communicator> host_;
  const std::shared_ptr<StagingMemory> staging_;  // shared with the rank's other groups
  Device& device_;
  CallerStream caller_;
};

}  // namespace

std::byte* StagingMemory::take(std::int64_t bytes) {
  if (memory_.bytes() < bytes) {
    memory_ = {};  // both at once would be too much
    memory_ = device_.allocate_host(bytes, "messages between ranks, on their way through the host");
  }
  return static_cast<std::byte*>(memory_.data());
}

std::unique_ptr<Communicator> make_staged_communicator(std::unique_ptr<Communicator> host,
                                                       std::shared_ptr<StagingMemory> staging) {
  return std::make_unique<StagedCommunicator>(std::move(host), std::move(staging));
}

}  // namespace dstrain
