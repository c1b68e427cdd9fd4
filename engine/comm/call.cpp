#include "engine/comm/call.h"

#include <numeric>

#include <fmt/format.h>

namespace dstrain {
namespace {

void check_reducible(DType dtype, Op op) {
  check(dtype != DType::kU8, "{} of u8: f32, bf16, f16, f64 and i32 can be reduced", name_of(op));
}

}  // namespace

std::string_view name_of(Purpose purpose) {
  switch (purpose) {
    case Purpose::kGradient:
      return "gradient";
    case Purpose::kParameter:
      return "parameter";
    case Purpose::kReplica:
      return "replica";
    case Purpose::kOptimizer:
      return "optimizer";
    case Purpose::kActivation:
      return "activation";
    case Purpose::kExperts:
      return "experts";
    case Purpose::kMetric:
      return "metric";
    case Purpose::kIntegrity:
      return "integrity";
    case Purpose::kControl:
      return "control";
  }
  return "?";
}

std::string_view name_of(Op op) {
  switch (op) {
    case Op::kAllReduce:
      return "all_reduce";
    case Op::kReduceScatter:
      return "reduce_scatter";
    case Op::kAllGather:
      return "all_gather";
    case Op::kBroadcast:
      return "broadcast";
    case Op::kAllToAll:
      return "all_to_all";
    case Op::kExchange:
      return "exchange";
    case Op::kBarrier:
      return "barrier";
  }
  return "?";
}

std::string Call::describe() const {
  if (op == Op::kBarrier) {
    return "barrier()";
  }
  if (op == Op::kAllToAll && elements == 0) {
    return fmt::format("all_to_all({}, {})", name_of(dtype), name_of(purpose));
  }
  std::string detail;
  if (op == Op::kAllReduce || op == Op::kReduceScatter) {
    detail = reduce == ReduceOp::kSum ? "sum, " : "max, ";
  } else if (op == Op::kBroadcast) {
    detail = fmt::format("root {}, ", root);
  }
  return fmt::format("{}({}[{}], {}{})", name_of(op), name_of(dtype), elements, detail,
                     name_of(purpose));
}

Call all_reduce_call(ConstTensor inout, ReduceOp reduce, Purpose purpose) {
  check_reducible(inout.dtype(), Op::kAllReduce);
  return {.op = Op::kAllReduce,
          .purpose = purpose,
          .dtype = inout.dtype(),
          .reduce = reduce,
          .elements = inout.numel()};
}

Call reduce_scatter_call(
    ConstTensor in, ConstTensor out, ReduceOp reduce, Purpose purpose, int group_size) {
  check_reducible(in.dtype(), Op::kReduceScatter);
  check(in.dtype() == out.dtype() && in.numel() == group_size * out.numel(),
        "reduce_scatter of {}{} into {}{} over {} ranks: the input must be {} times the output",
        name_of(in.dtype()), in.shape().to_string(), name_of(out.dtype()), out.shape().to_string(),
        group_size, group_size);
  return {.op = Op::kReduceScatter,
          .purpose = purpose,
          .dtype = in.dtype(),
          .reduce = reduce,
          .elements = in.numel()};
}

Call all_gather_call(ConstTensor in, ConstTensor out, Purpose purpose, int group_size) {
  check(in.dtype() == out.dtype() && out.numel() == group_size * in.numel(),
        "all_gather of {}{} into {}{} over {} ranks: the output must be {} times the input",
        name_of(in.dtype()), in.shape().to_string(), name_of(out.dtype()), out.shape().to_string(),
        group_size, group_size);
  return {.op = Op::kAllGather, .purpose = purpose, .dtype = in.dtype(), .elements = out.numel()};
}

Call broadcast_call(ConstTensor inout, int root, Purpose purpose, int group_size) {
  check(root >= 0 && root < group_size, "broadcast from rank {} of a group of {}", root,
        group_size);
  return {.op = Op::kBroadcast,
          .purpose = purpose,
          .dtype = inout.dtype(),
          .root = root,
          .elements = inout.numel()};
}

AllToAllParts all_to_all_parts(ConstTensor in,
                               std::span<const std::int64_t> sent,
                               Tensor out,
                               std::span<const std::int64_t> received,
                               Purpose purpose,
                               const Communicator& group) {
  const auto members = static_cast<std::size_t>(group.size());
  const auto fits = [&](std::span<const std::int64_t> counts, std::int64_t elements) {
    return counts.size() == members &&
           std::accumulate(counts.begin(), counts.end(), std::int64_t{0}) == elements;
  };
  check(in.dtype() == out.dtype() && fits(sent, in.numel()) && fits(received, out.numel()),
        "all_to_all of {}{} into {}{} over {} ranks: there must be {} parts each way, which add up "
        "to the whole",
        name_of(in.dtype()), in.shape().to_string(), name_of(out.dtype()), out.shape().to_string(),
        members, members);
  AllToAllParts all{.call = {.op = Op::kAllToAll, .purpose = purpose, .dtype = in.dtype()},
                    .kept_in = {},
                    .kept_out = {},
                    .messages = {}};
  std::int64_t from = 0;
  std::int64_t to = 0;
  for (std::size_t member = 0; member < members; ++member) {
    const ConstTensor given = in.flat(from, from + sent[member]);
    const Tensor taken = out.flat(to, to + received[member]);
    from += sent[member];
    to += received[member];
    if (const auto peer = static_cast<int>(member); peer == group.rank()) {
      check(given.numel() == taken.numel(), "all_to_all: rank {} sends itself {} elements of {}",
            peer, given.numel(), taken.numel());
      all.kept_in = given;
      all.kept_out = taken;
    } else {
      // A message's tensor is writable, but one that is sent is only read.
      all.messages.push_back(
          {P2p::Kind::kSend, peer,
           Tensor(const_cast<void*>(given.data()), given.dtype(), given.shape())});
      all.messages.push_back({P2p::Kind::kReceive, peer, taken});
    }
  }
  return all;
}

}  // namespace dstrain
