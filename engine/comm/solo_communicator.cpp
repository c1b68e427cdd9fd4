#include "engine/comm/solo_communicator.h"

#include <atomic>
#include <cstring>
#include <utility>

#include "engine/comm/call.h"

namespace dstrain {
namespace {

class SoloCommunicator final : public Communicator {
 public:
  SoloCommunicator(std::string name, Device* device) : name_(std::move(name)), device_(device) {}

  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int size() const override { return 1; }
  [[nodiscard]] const std::string& name() const override { return name_; }

  void all_reduce(Tensor inout, ReduceOp op, Purpose purpose, Stream& /*stream*/) override {
    refuse_after_abort(all_reduce_call(inout, op, purpose).op);
  }
  void reduce_scatter(
      ConstTensor in, Tensor out, ReduceOp op, Purpose purpose, Stream& stream) override {
    refuse_after_abort(reduce_scatter_call(in, out, op, purpose, 1).op);
    copy(in, out, stream);
  }
  void all_gather(ConstTensor in, Tensor out, Purpose purpose, Stream& stream) override {
    refuse_after_abort(all_gather_call(in, out, purpose, 1).op);
    copy(in, out, stream);
  }
  void broadcast(Tensor inout, int root, Purpose purpose, Stream& /*stream*/) override {
    refuse_after_abort(broadcast_call(inout, root, purpose, 1).op);
  }
  void all_to_all(ConstTensor in,
                  std::span<const std::int64_t> sent,
                  Tensor out,
                  std::span<const std::int64_t> received,
                  Purpose purpose,
                  Stream& stream) override {
    const AllToAllParts all = all_to_all_parts(in, sent, out, received, purpose, *this);
    refuse_after_abort(all.call.op);
    copy(all.kept_in, all.kept_out, stream);
  }
  void exchange(std::span<const P2p> messages, Purpose /*purpose*/, Stream& /*stream*/) override {
    refuse_after_abort(Op::kExchange);
    check(messages.empty(), "exchange with rank {} in group {}, which has one member",
          messages.empty() ? 0 : messages[0].peer, name_);
  }
  void barrier() override { refuse_after_abort(Op::kBarrier); }
  void abort() noexcept override { aborted_ = true; }

 private:
  void refuse_after_abort(Op op) const {
    if (aborted_) {
      throw PeerLost(fmt::format("{} in group {}: the group was aborted", name_of(op), name_));
    }
  }
  void copy(ConstTensor in, Tensor out, Stream& stream) const {
    if (device_ != nullptr) {
      device_->copy(in, out, stream);
    } else if (in.data() != out.data() && in.bytes() > 0) {
      stream.run(
          [in, out] { std::memmove(out.data(), in.data(), static_cast<std::size_t>(in.bytes())); });
    }
  }

  const std::string name_;
  Device* const device_;
  std::atomic<bool> aborted_{false};
};

class SoloRendezvous final : public Rendezvous {
 public:
  [[nodiscard]] int world_rank() const override { return 0; }
  [[nodiscard]] int world_size() const override { return 1; }
  std::unique_ptr<Communicator> make_group(const std::string& name,
                                           std::span<const int> members) override {
    (void)rank_in_group(*this, name, members);
    return make_solo_communicator(name);
  }
};

}  // namespace

std::unique_ptr<Communicator> make_solo_communicator(std::string name, Device* device) {
  return std::make_unique<SoloCommunicator>(std::move(name), device);
}

std::unique_ptr<Rendezvous> make_solo_rendezvous() {
  return std::make_unique<SoloRendezvous>();
}

}  // namespace dstrain
