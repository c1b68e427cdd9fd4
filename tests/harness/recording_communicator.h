// RecordingCommunicator: lists what passes through a group, for tests that count traffic ("zero2
// sends no gradient all-reduce") and for traces. A decorator over any carrier; RecordingRendezvous
// puts one on every group it makes. Groups of one put nothing on the wire and are not listed.
#pragma once

#include <memory>
#include <mutex>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/comm/rendezvous.h"

namespace dstrain {

/// The operations of one rank, in order. It may be read while other threads write.
class CollectiveLog {
 public:
  struct Entry {
    Op op = Op::kBarrier;
    std::string group;
    Purpose purpose = Purpose::kControl;
    DType dtype = DType::kU8;
    /// Elements of the whole buffer: the tensor of an all_reduce or broadcast, the input of a
    /// reduce_scatter or all_to_all, the output of an all_gather, everything sent in an exchange.
    std::int64_t elements = 0;
    [[nodiscard]] std::int64_t bytes() const { return elements * size_of(dtype); }
  };

  void add(Entry entry) {
    const std::lock_guard lock(mutex_);
    entries_.push_back(std::move(entry));
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    entries_.clear();
  }
  [[nodiscard]] std::vector<Entry> entries() const {
    const std::lock_guard lock(mutex_);
    return entries_;
  }
  [[nodiscard]] std::int64_t count(Op op, Purpose purpose) const {
    return sum(op, purpose, [](const Entry&) { return std::int64_t{1}; });
  }
  [[nodiscard]] std::int64_t bytes(Op op, Purpose purpose) const {
    return sum(op, purpose, [](const Entry& entry) { return entry.bytes(); });
  }

 private:
  template <typename Value>
  std::int64_t sum(Op op, Purpose purpose, Value value) const {
    const std::lock_guard lock(mutex_);
    return std::accumulate(entries_.begin(), entries_.end(), std::int64_t{0},
                           [&](std::int64_t total, const Entry& entry) {
                             const bool counts = entry.op == op && entry.purpose == purpose;
                             return counts ? total + value(entry) : total;
                           });
  }

  mutable std::mutex mutex_;
  std::vector<Entry> entries_;
};

class RecordingCommunicator final : public Communicator {
 public:
  /// `log` must outlive this.
  RecordingCommunicator(std::unique_ptr<Communicator> inner, CollectiveLog& log)
      : inner_(std::move(inner)), log_(log) {}

  [[nodiscard]] int rank() const override { return inner_->rank(); }
  [[nodiscard]] int size() const override { return inner_->size(); }
  [[nodiscard]] const std::string& name() const override { return inner_->name(); }

  void all_reduce(Tensor inout, ReduceOp op, Purpose purpose, Stream& stream) override {
    record(Op::kAllReduce, purpose, inout);
    inner_->all_reduce(inout, op, purpose, stream);
  }
  void reduce_scatter(
      ConstTensor in, Tensor out, ReduceOp op, Purpose purpose, Stream& stream) override {
    record(Op::kReduceScatter, purpose, in);
    inner_->reduce_scatter(in, out, op, purpose, stream);
  }
  void all_gather(ConstTensor in, Tensor out, Purpose purpose, Stream& stream) override {
    record(Op::kAllGather, purpose, out);
    inner_->all_gather(in, out, purpose, stream);
  }
  void broadcast(Tensor inout, int root, Purpose purpose, Stream& stream) override {
    record(Op::kBroadcast, purpose, inout);
    inner_->broadcast(inout, root, purpose, stream);
  }
  void all_to_all(ConstTensor in,
                  std::span<const std::int64_t> sent,
                  Tensor out,
                  std::span<const std::int64_t> received,
                  Purpose purpose,
                  Stream& stream) override {
    record(Op::kAllToAll, purpose, in);
    inner_->all_to_all(in, sent, out, received, purpose, stream);
  }
  void exchange(std::span<const P2p> messages, Purpose purpose, Stream& stream) override {
    const DType dtype = messages.empty() ? DType::kU8 : messages.front().tensor.dtype();
    std::int64_t sent = 0;
    for (const P2p& message : messages) {
      check(message.tensor.dtype() == dtype, "an exchange of two dtypes");
      sent += message.kind == P2p::Kind::kSend ? message.tensor.numel() : 0;
    }
    record(Op::kExchange, purpose, dtype, sent);
    inner_->exchange(messages, purpose, stream);
  }
  void barrier() override {
    record(Op::kBarrier, Purpose::kControl, DType::kU8, 0);
    inner_->barrier();
  }
  void abort() noexcept override { inner_->abort(); }

 private:
  void record(Op op, Purpose purpose, ConstTensor tensor) {
    record(op, purpose, tensor.dtype(), tensor.numel());
  }
  void record(Op op, Purpose purpose, DType dtype, std::int64_t elements) {
    if (size() > 1) {
      log_.add(
          {.op = op, .group = name(), .purpose = purpose, .dtype = dtype, .elements = elements});
    }
  }

  const std::unique_ptr<Communicator> inner_;
  CollectiveLog& log_;
};

class RecordingRendezvous final : public Rendezvous {
 public:
  /// Both must outlive this.
  RecordingRendezvous(Rendezvous& inner, CollectiveLog& log) : inner_(inner), log_(log) {}

  [[nodiscard]] int world_rank() const override { return inner_.world_rank(); }
  [[nodiscard]] int world_size() const override { return inner_.world_size(); }
  [[nodiscard]] std::unique_ptr<Communicator> make_group(const std::string& name,
                                                         std::span<const int> members) override {
    return std::make_unique<RecordingCommunicator>(inner_.make_group(name, members), log_);
  }

 private:
  Rendezvous& inner_;
  CollectiveLog& log_;
};

}  // namespace dstrain
