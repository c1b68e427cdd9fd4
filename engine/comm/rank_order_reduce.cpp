#include "engine/comm/rank_order_reduce.h"

#include "engine/comm/rank_order_loops.h"

namespace dstrain {
namespace {

struct AllLoops {
  RankOrderLoops sum;
  RankOrderLoops max;

  AllLoops() {
    const bool has_avx2 = __builtin_cpu_supports("x86-64-v3") != 0;
    const bool has_avx512 = __builtin_cpu_supports("x86-64-v4") != 0;
    const auto fill = has_avx512 ? avx512::fill_rank_order_loops
                      : has_avx2 ? avx2::fill_rank_order_loops
                                 : baseline::fill_rank_order_loops;
    fill(&sum, &max);
  }
};

RankOrderLoops::Loop loop_of(const RankOrderLoops& loops, DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return loops.f32;
    case DType::kBF16:
      return loops.bf16;
    case DType::kF16:
      return loops.f16;
    case DType::kF64:
      return loops.f64;
    case DType::kI32:
      return loops.i32;
    case DType::kU8:
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      break;
  }
  check(false, "{} cannot be reduced", name_of(dtype));
  return nullptr;
}

RankOrderLoops::Loop loop_for(DType dtype, ReduceOp op) {
  static const AllLoops loops;
  return loop_of(op == ReduceOp::kSum ? loops.sum : loops.max, dtype);
}

}  // namespace

void reduce_in_rank_order(std::span<const void* const> inputs,
                          void* out,
                          DType dtype,
                          ReduceOp op,
                          std::int64_t elements,
                          std::span<void* const> copies) {
  check(!inputs.empty(), "a reduction of no inputs");
  loop_for(dtype, op)({.inputs = inputs.data(),
                       .num_inputs = static_cast<std::int64_t>(inputs.size()),
                       .out = out,
                       .copies = copies.data(),
                       .num_copies = static_cast<std::int64_t>(copies.size()),
                       .elements = elements});
}

DType partial_dtype(DType dtype) {
  return dtype == DType::kBF16 || dtype == DType::kF16 ? DType::kF32 : dtype;
}

void continue_in_rank_order(const void* before,
                            std::span<const void* const> inputs,
                            void* out,
                            Total total,
                            DType dtype,
                            ReduceOp op,
                            std::int64_t elements) {
  check(!inputs.empty(), "a reduction of no inputs");
  loop_for(dtype, op)({.before = before,
                       .inputs = inputs.data(),
                       .num_inputs = static_cast<std::int64_t>(inputs.size()),
                       .out = out,
                       .is_partial = total == Total::kPartial,
                       .elements = elements});
}

}  // namespace dstrain
