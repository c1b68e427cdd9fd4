// The loops of rank_order_reduce.h, compiled once per instruction set as those of
// kernels/cpu/vector are (see vec.h there for what that forbids). All give the same bits.
#pragma once

#include <cstdint>

namespace dstrain {

/// out[i] = inputs[0][i] op inputs[1][i] op …, and the same to each copy; out and the copies may be
/// inputs. With `before` it is before[i] op inputs[0][i] op …. That, and an out that is partial,
/// are of the type in which elements are combined: f32 for bf16 and f16.
struct RankOrder {
  const void* before = nullptr;
  const void* const* inputs = nullptr;
  std::int64_t num_inputs = 0;
  void* out = nullptr;
  bool is_partial = false;
  void* const* copies = nullptr;
  std::int64_t num_copies = 0;
  std::int64_t elements = 0;
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
