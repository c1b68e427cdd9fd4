#include "engine/comm/call.h"

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

}  // namespace dstrain
