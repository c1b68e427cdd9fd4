// A head whose rows count with length one.
#include "kernels/cpu/vector/parts.h"
#include "kernels/cpu/vector/vec.h"

namespace dstrain::DSTRAIN_ISA {
namespace {

template <typename T>
[[gnu::flatten]] void multiply(T* x, const float* factors, std::int64_t n) {
  for_each_vec(n, [=](std::int64_t i, auto width) {
    store(x + i, load(x + i, width) * load(factors + i, width), width);
  });
}

/// The length is taken into w first: w · dw of the unit row, whose squares cannot leave f32's
/// range.
template <typename T>
[[gnu::flatten]] void project_row(const T* w,
                                  float inverse_length,
                                  float* dw,
                                  std::int64_t width_C) {
  Vec sums[2] = {};
  for_each_vec_pair(width_C, [=, &sums](std::int64_t c, auto width, int chain) {
    sums[chain] += covered(load(w + c, width) * inverse_length * load(dw + c, width), width);
  });
  const float along = sum_lanes(sums[0] + sums[1]) * inverse_length;
  for_each_vec(width_C, [=](std::int64_t c, auto width) {
    store(dw + c, load(dw + c, width) - load(w + c, width) * along, width);
  });
}

template <typename T>
void fill(TypedLoops<T>* loops) {
  loops->multiply = multiply<T>;
  loops->project_row = project_row<T>;
}

}  // namespace

void fill_unit_rows(VectorLoops* loops) {
  fill(&loops->f32);
  fill(&loops->bf16);
  fill(&loops->f16);
}

}  // namespace dstrain::DSTRAIN_ISA
