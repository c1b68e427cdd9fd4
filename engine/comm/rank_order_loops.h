// The loops of rank_order_reduce.h, compiled once per instruction set as those of
// kernels/cpu/vector are (see vec.h there for what that forbids). All give the same bits.
#pragma once

#include <cstdint>

namespace dstrain {

/// out[i] = inputs[0][i] op inputs[1][i] op …, and the same to each copy; out and the copies may be
/// inputs.
struct RankOrder {
  const void* const* inputs;
  std::int64_t num_inputs;
  void* out;
  void* const* copies;
  std::int64_t num_copies;
  std::int64_t elements;
};

/// For one operation.
struct RankOrderLoops {
  using Loop = void (*)(const RankOrder&);
  Loop f32 = nullptr;
  Loop bf16 = nullptr;
  Loop f16 = nullptr;
  Loop f64 = nullptr;
  Loop i32 = nullptr;
};

namespace baseline {
void fill_rank_order_loops(RankOrderLoops* sum, RankOrderLoops* max);
}
namespace avx2 {
void fill_rank_order_loops(RankOrderLoops* sum, RankOrderLoops* max);
}
namespace avx512 {
void fill_rank_order_loops(RankOrderLoops* sum, RankOrderLoops* max);
}

}  // namespace dstrain
