#include "engine/comm/nccl_communicator.h"

#include <algorithm>
#include <exception>

#include <fmt/format.h>

#include "engine/comm/call.h"
#include "engine/comm/nccl_comm.h"
#include "engine/comm/nccl_notices.h"
#include "engine/comm/nccl_watchdog.h"
#include "engine/comm/solo_communicator.h"
#include "kernels/cuda/cuda_device.h"

namespace dstrain {
namespace {

constexpr std::chrono::seconds kGoodbyeDeadline{5};

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return ncclFloat32;
    case DType::kBF16:
      return ncclBfloat16;
    case DType::kF16:
      return ncclFloat16;
    case DType::kF64:
      return ncclFloat64;
    case DType::kI32:
      return ncclInt32;
    case DType::kU8:
      return ncclUint8;
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      break;
  }
  fail_check("a dtype that NCCL does not have", std::source_location::current());
}

ncclRedOp_t op_of(ReduceOp op) {
  return op == ReduceOp::kSum ? ncclSum : ncclMax;
}

/// A call in a group may still be in progress when it returns.
bool is_accepted(ncclResult_t status) {
  return status == ncclSuccess || status == ncclInProgress;
}

std::size_t count(ConstTensor tensor) {
  return static_cast<std::size_t>(tensor.numel());
}

CudaDevice& cuda(Device& device, const NcclGroup& group) {
  auto* const found = dynamic_cast<CudaDevice*>(&device);
  check(found != nullptr, "group \"{}\": NCCL was given a device that is not a CUDA device",
        group.name);
  return *found;
}

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(const NcclGroup& group,
                   Store& store,
                   CudaDevice& device,
                   const NcclOptions& options)
      : group_(group),
        device_(device),
        activity_(options.activity),
        notices_(store, group),
        control_(device.make_side_stream("nccl-" + group.name)),
        arrived_(device.allocate(sizeof(float), "the barrier of group " + group.name)),
        comm_(open_nccl(), group, notices_, options.connect_timeout),
        watchdog_(comm_, notices_, device, group, options) {}

  // Members leave together, once all is done: NCCL may still be sending what a stream has passed. A
  // member that has failed does not wait for the others.
  ~NcclCommunicator() override {
    const bool is_intact = watchdog_.stop();
    const bool fails = device_.failure() != nullptr || std::uncaught_exceptions() > 0;
    if (!is_intact || (!fails && comm_.leave(notices_, kGoodbyeDeadline))) {
      return;
    }
    if (!watchdog_.is_idle()) {
      device_.fail(std::make_exception_ptr(
          PeerLost(fmt::format("group \"{}\" was left before its work was done", group_.name))));
    }
    notices_.tell_failure("it left the group");
  }

  [[nodiscard]] int rank() const override { return group_.rank; }
  [[nodiscard]] int size() const override { return static_cast<int>(group_.members.size()); }
  [[nodiscard]] const std::string& name() const override { return group_.name; }

  void all_reduce(Tensor inout, ReduceOp op, Purpose purpose, Stream& stream) override {
    enqueue(all_reduce_call(inout, op, purpose), stream, [&](ncclComm_t comm, cudaStream_t on) {
      return nccl().all_reduce(inout.data(), inout.data(), count(inout), type_of(inout.dtype()),
                               op_of(op), comm, on);
    });
  }

  void reduce_scatter(
      ConstTensor in, Tensor out, ReduceOp op, Purpose purpose, Stream& stream) override {
    const Call call = reduce_scatter_call(in, out, op, purpose, size());
    enqueue(call, stream, [&](ncclComm_t comm, cudaStream_t on) {
      return nccl().reduce_scatter(in.data(), out.data(), count(out), type_of(out.dtype()),
                                   op_of(op), comm, on);
    });
  }

  void all_gather(ConstTensor in, Tensor out, Purpose purpose, Stream& stream) override {
    const Call call = all_gather_call(in, out, purpose, size());
    enqueue(call, stream, [&](ncclComm_t comm, cudaStream_t on) {
      return nccl().all_gather(in.data(), out.data(), count(in), type_of(in.dtype()), comm, on);
    });
  }

  void broadcast(Tensor inout, int root, Purpose purpose, Stream& stream) override {
    const Call call = broadcast_call(inout, root, purpose, size());
    enqueue(call, stream, [&](ncclComm_t comm, cudaStream_t on) {
      return nccl().broadcast(inout.data(), inout.data(), count(inout), type_of(inout.dtype()),
                              root, comm, on);
    });
  }

  void all_to_all(ConstTensor in,
                  std::span<const std::int64_t> sent,
                  Tensor out,
                  std::span<const std::int64_t> received,
                  Purpose purpose,
                  Stream& stream) override {
    const AllToAllParts all = all_to_all_parts(in, sent, out, received, purpose, *this);
    if (all.kept_in.bytes() > 0) {
      device_.copy(all.kept_in, all.kept_out, stream);
    }
    enqueue(all.call, stream,
            [&](ncclComm_t comm, cudaStream_t on) { return transfer_all(all.messages, comm, on); });
  }

  void exchange(std::span<const P2p> messages, Purpose purpose, Stream& stream) override {
    Call call{.op = Op::kExchange, .purpose = purpose};
    for (const P2p& message : messages) {
      check(message.peer >= 0 && message.peer < size() && message.peer != rank(),
            "exchange with rank {} in group \"{}\", on rank {} of {}", message.peer, name(), rank(),
            size());
      call.elements += message.tensor.bytes();
    }
    enqueue(call, stream,
            [&](ncclComm_t comm, cudaStream_t on) { return transfer_all(messages, comm, on); });
  }

  // The barrier is a collective of NCCL's rather than a round through the store: it takes the same
  // path as the collectives around it, and the same watchdog covers it.
  void barrier() override {
    const Tensor arrived(arrived_.data(), DType::kF32, {1});
    enqueue({.op = Op::kBarrier, .dtype = DType::kF32, .elements = 1}, *control_,
            [&](ncclComm_t comm, cudaStream_t on) {
              return nccl().all_reduce(arrived.data(), arrived.data(), 1, ncclFloat32, ncclMax,
                                       comm, on);
            });
    if (activity_ != nullptr) activity_->begin_wait();
    try {
      control_->synchronize();
    } catch (...) {
      if (activity_ != nullptr) activity_->end_wait();
      throw;
    }
    if (activity_ != nullptr) activity_->end_wait();
  }

  void abort() noexcept override { watchdog_.abort(); }

 private:
  [[nodiscard]] const Nccl& nccl() const { return comm_.nccl(); }

  /// With an empty tensor there is nothing to move, so no member enqueues anything. An all_to_all
  /// needs every member, even one that has nothing to send or receive.
  template <typename Calls>
  void enqueue(const Call& call, Stream& stream, Calls&& calls) {
    if (call.elements == 0 && call.op != Op::kAllToAll) {
      return;
    }
    const cudaStream_t on = handle_of(stream);
    NcclWatchdog::Collective& collective = watchdog_.begin(call, on);
    const ncclResult_t status = comm_.enqueue([&](ncclComm_t comm) { return calls(comm, on); });
    if (status != ncclSuccess) {
      watchdog_.refuse(collective, status);
    }
    watchdog_.finish(collective, on);
  }

  [[nodiscard]] ncclResult_t transfer_all(std::span<const P2p> messages,
                                          ncclComm_t comm,
                                          cudaStream_t stream) const {
    if (std::all_of(messages.begin(), messages.end(),
                    [](const P2p& message) { return message.tensor.bytes() == 0; })) {
      return ncclSuccess;
    }
    ncclResult_t status = nccl().group_start();
    for (const P2p& message : messages) {
      if (is_accepted(status)) {
        status = transfer(message, comm, stream);
      }
    }
    const ncclResult_t ended = nccl().group_end();
    return is_accepted(status) ? ended : status;
  }

  [[nodiscard]] ncclResult_t transfer(const P2p& message,
                                      ncclComm_t comm,
                                      cudaStream_t stream) const {
    const Tensor& tensor = message.tensor;
    if (tensor.bytes() == 0) {
      return ncclSuccess;
    }
    const auto bytes = static_cast<std::size_t>(tensor.bytes());
    return message.kind == P2p::Kind::kSend
               ? nccl().send(tensor.data(), bytes, ncclUint8, message.peer, comm, stream)
               : nccl().receive(tensor.data(), bytes, ncclUint8, message.peer, comm, stream);
  }

  const NcclGroup group_;
  CudaDevice& device_;
  ActivityRecorder* const activity_;
  NcclNotices notices_;
  const std::unique_ptr<Stream> control_;  // the barrier's
  const DeviceMemory arrived_;
  NcclComm comm_;
  NcclWatchdog watchdog_;
};

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(const NcclGroup& group,
                                                     Store& store,
                                                     Device& device,
                                                     const NcclOptions& options) {
  if (group.members.size() == 1) {
    return make_solo_communicator(group.name);
  }
  return std::make_unique<NcclCommunicator>(group, store, cuda(device, group), options);
}

}  // namespace dstrain
