// A head whose rows count with length one, and weights whose rows have magnitudes of their own.
#include "kernels/cpu/vector/parts.h"
#include "kernels/cpu/vector/vec.h"

namespace dstrain::DSTRAIN_ISA {
namespace {

template <typename T>
[[gnu::flatten]] void scale_columns(
    const T* x, const float* factors, const T* bias, T* y, bool adds, std::int64_t n) {
  for_each_vec(n, [=](std::int64_t i, auto width) {
    Vec value = load(x + i, width);
    if (factors != nullptr) value *= load(factors + i, width);
    if (bias != nullptr) value += load(bias + i, width);
    if (adds) value += load(y + i, width);
    store(y + i, value, width);
  });
}

template <typename T>
[[gnu::flatten]] void scale_columns_backward(const T* dy,
                                             const T* x,
                                             const float* factors,
                                             const float* inverses,
                                             T* dx,
                                             float* sums,
                                             std::int64_t n) {
  for_each_vec(n, [=](std::int64_t i, auto width) {
    const Vec slope = load(dy + i, width);
    const Vec along = slope * load(x + i, width) * load(inverses + i, width);
    store(sums + i, load(sums + i, width) + along, width);
    store(dx + i, slope * load(factors + i, width), width);
  });
}

template <typename T>
[[gnu::flatten]] float row_product(const T* a, const float* b, std::int64_t n) {
  Vec sums[2] = {};
  for_each_vec_pair(n, [=, &sums](std::int64_t i, auto width, int chain) {
    sums[chain] += covered(load(a + i, width) * load(b + i, width), width);
  });
  return sum_lanes(sums[0] + sums[1]);
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
  loops->scale_columns = scale_columns<T>;
  loops->scale_columns_backward = scale_columns_backward<T>;
  loops->row_product = row_product<T>;
  loops->project_row = project_row<T>;
}

}  // namespace

void fill_unit_rows(VectorLoops* loops) {
  fill(&loops->f32);
  fill(&loops->bf16);
  fill(&loops->f16);
}

}  // namespace dstrain::DSTRAIN_ISA
