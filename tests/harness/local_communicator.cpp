// Ranks as threads of one process. Each member does its own share of a collective directly in the
// others' memory: in an all_reduce member r combines the r-th slice for everybody.
#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "engine/comm/call.h"
#include "engine/comm/rank_order_reduce.h"
#include "engine/comm/solo_communicator.h"
#include "tests/harness/local_group.h"
#include "tests/harness/local_rendezvous.h"

namespace dstrain {
namespace {

using Buffers = LocalGroup::Buffers;

const std::byte* at(const void* base, std::int64_t bytes) {
  return static_cast<const std::byte*>(base) + bytes;
}
std::byte* at(void* base, std::int64_t bytes) {
  return static_cast<std::byte*>(base) + bytes;
}

std::vector<const void*> inputs_from(std::span<const Buffers> all, std::int64_t byte_offset) {
  std::vector<const void*> inputs;
  for (const Buffers& member : all) {
    inputs.push_back(at(member.in, byte_offset));
  }
  return inputs;
}

void copy_bytes(void* to, const void* from, std::int64_t bytes) {
  if (to != from && bytes > 0) {
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
  }
}

class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator(std::shared_ptr<LocalGroup> group, int rank)
      : group_(std::move(group)), rank_(rank) {
    group_->join(rank_);
  }
  ~LocalCommunicator() override { group_->leave(rank_); }

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return group_->size(); }
  [[nodiscard]] const std::string& name() const override { return group_->name(); }

  void all_reduce(Tensor inout, ReduceOp op, Purpose purpose, Stream& stream) override {
    const Call call = all_reduce_call(inout, op, purpose);
    stream.run([=, this] {
      group_->collective(rank_, call, {inout.data(), inout.data()}, [&](auto all) {
        const std::int64_t share = (inout.numel() + size() - 1) / size();
        const std::int64_t begin = std::min(rank_ * share, inout.numel());
        const std::int64_t elements = std::min(share, inout.numel() - begin);
        const std::int64_t offset = begin * size_of(inout.dtype());
        reduce_in_rank_order(inputs_from(all, offset), at(inout.data(), offset), inout.dtype(), op,
                             elements);
        for (const Buffers& member : all) {
          copy_bytes(at(member.out, offset), at(inout.data(), offset),
                     elements * size_of(inout.dtype()));
        }
      });
    });
  }

  void reduce_scatter(
      ConstTensor in, Tensor out, ReduceOp op, Purpose purpose, Stream& stream) override {
    const Call call = reduce_scatter_call(in, out, op, purpose, size());
    stream.run([=, this] {
      group_->collective(rank_, call, {in.data(), out.data()}, [&](auto all) {
        reduce_in_rank_order(inputs_from(all, rank_ * out.bytes()), out.data(), out.dtype(), op,
                             out.numel());
      });
    });
  }

  void all_gather(ConstTensor in, Tensor out, Purpose purpose, Stream& stream) override {
    const Call call = all_gather_call(in, out, purpose, size());
    stream.run([=, this] {
      group_->collective(rank_, call, {in.data(), out.data()}, [&](auto all) {
        for (int member = 0; member < size(); ++member) {
          copy_bytes(at(out.data(), member * in.bytes()), all[static_cast<std::size_t>(member)].in,
                     in.bytes());
        }
      });
    });
  }

  void broadcast(Tensor inout, int root, Purpose purpose, Stream& stream) override {
    const Call call = broadcast_call(inout, root, purpose, size());
    stream.run([=, this] {
      group_->collective(rank_, call, {inout.data(), inout.data()}, [&](auto all) {
        copy_bytes(inout.data(), all[static_cast<std::size_t>(root)].in, inout.bytes());
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
    stream.run([this, all] {
      copy_bytes(all.kept_out.data(), all.kept_in.data(), all.kept_in.bytes());
      group_->exchange(rank_, all.messages, all.call);
    });
  }

  void exchange(std::span<const P2p> messages, Purpose purpose, Stream& stream) override {
    const Call call{.op = Op::kExchange, .purpose = purpose};
    if (stream.is_inline()) {
      group_->exchange(rank_, messages, call);
    } else {
      stream.enqueue([this, call, copy = std::vector<P2p>(messages.begin(), messages.end())] {
        group_->exchange(rank_, copy, call);
      });
    }
  }

  void barrier() override {
    group_->collective(rank_, {}, {}, [](auto) {});
  }
  void abort() noexcept override { group_->abort(); }

 private:
  const std::shared_ptr<LocalGroup> group_;  // shared by the communicators of its members
  const int rank_;
};

/// The groups of one world, by name: whoever comes first makes one.
class LocalWorld {
 public:
  LocalWorld(int size, std::chrono::milliseconds timeout)
      : size_(size), timeout_(timeout), gone_(static_cast<std::size_t>(size), false) {}

  [[nodiscard]] int size() const { return size_; }
  std::shared_ptr<LocalGroup> group(const std::string& name, std::span<const int> members) {
    const std::vector<int> wanted(members.begin(), members.end());
    const std::lock_guard lock(mutex_);
    std::shared_ptr<LocalGroup>& group = groups_[name];
    if (group == nullptr) {
      group = std::make_shared<LocalGroup>(name, wanted, timeout_);
    }
    check(group->members() == wanted, "group \"{}\" is asked for with two lists of members", name);
    for (std::size_t seat = 0; seat < wanted.size(); ++seat) {
      if (gone_[static_cast<std::size_t>(wanted[seat])]) {
        group->leave(static_cast<int>(seat));
      }
    }
    return group;
  }
  /// The rank's thread is over: nobody shall wait for it, in groups it never came to either.
  void leave(int rank) noexcept {
    const std::lock_guard lock(mutex_);
    gone_[static_cast<std::size_t>(rank)] = true;
    for (const auto& [name, group] : groups_) {
      const auto& members = group->members();
      const auto mine = std::find(members.begin(), members.end(), rank);
      if (mine != members.end()) {
        group->leave(static_cast<int>(mine - members.begin()));
      }
    }
  }

 private:
  const int size_;
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::vector<bool> gone_;
  std::map<std::string, std::shared_ptr<LocalGroup>> groups_;
};

class LocalRendezvous final : public Rendezvous {
 public:
  LocalRendezvous(std::shared_ptr<LocalWorld> world, int rank)
      : world_(std::move(world)), rank_(rank) {}
  ~LocalRendezvous() override { world_->leave(rank_); }

  [[nodiscard]] int world_rank() const override { return rank_; }
  [[nodiscard]] int world_size() const override { return world_->size(); }

  std::unique_ptr<Communicator> make_group(const std::string& name,
                                           std::span<const int> members) override {
    const int rank = rank_in_group(*this, name, members);
    if (members.size() == 1) {
      return make_solo_communicator(name);
    }
    return std::make_unique<LocalCommunicator>(world_->group(name, members), rank);
  }

 private:
  const std::shared_ptr<LocalWorld> world_;  // shared by the rendezvous of all ranks
  const int rank_;
};

}  // namespace

std::vector<std::unique_ptr<Rendezvous>> make_local_rendezvous(int world_size,
                                                               std::chrono::milliseconds timeout) {
  check(world_size >= 1, "a world of {} ranks", world_size);
  const auto world = std::make_shared<LocalWorld>(world_size, timeout);
  std::vector<std::unique_ptr<Rendezvous>> ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    ranks.push_back(std::make_unique<LocalRendezvous>(world, rank));
  }
  return ranks;
}

}  // namespace dstrain
