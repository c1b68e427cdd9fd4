// RMS norms of groups of columns, group by group.
#include "kernels/cpu/vector/parts.h"
#include "kernels/cpu/vector/vec.h"

namespace dstrain::DSTRAIN_ISA {
namespace {

template <typename T>
[[gnu::flatten]] void group_squares(const GroupNormRows<T>& norm, float* sums) {
  for (std::int64_t row = 0; row < norm.rows; ++row) {
    for (std::int64_t group = 0; group < norm.groups; ++group) {
      const T* const x = norm.x + row * norm.x_stride + group * norm.width;
      Vec squares[2] = {};
      for_each_vec_pair(norm.width, [=, &squares](std::int64_t c, auto width, int chain) {
        const Vec value = load(x + c, width);
        squares[chain] += value * value;
      });
      sums[row * norm.groups + group] = sum_lanes(squares[0] + squares[1]);
    }
  }
}

template <typename T>
[[gnu::flatten]] void group_products(const GroupNormRows<T>& norm, float* sums) {
  const T* const weight = norm.weight;
  const float offset = norm.weight_offset;
  for (std::int64_t row = 0; row < norm.rows; ++row) {
    for (std::int64_t group = 0; group < norm.groups; ++group) {
      const T* const x = norm.x + row * norm.x_stride + group * norm.width;
      const T* const dy = norm.dy + row * norm.dy_stride + group * norm.width;
      Vec products[2] = {};
      for_each_vec_pair(norm.width, [=, &products](std::int64_t c, auto width, int chain) {
        const Vec factor = load(weight + c, width) + offset;
        products[chain] += load(dy + c, width) * factor * load(x + c, width);
      });
      sums[row * norm.groups + group] = sum_lanes(products[0] + products[1]);
    }
  }
}

template <typename T>
DSTRAIN_INLINE float inverse_root(const GroupNormRows<T>& norm, std::int64_t at) {
  return 1.0F / __builtin_sqrtf(norm.squares[at] * norm.inverse_norm_width + norm.epsilon);
}

template <typename T>
[[gnu::flatten]] void group_norm_forward(const GroupNormRows<T>& norm) {
  const T* const weight = norm.weight;
  const float offset = norm.weight_offset;
  for (std::int64_t row = 0; row < norm.rows; ++row) {
    for (std::int64_t group = 0; group < norm.groups; ++group) {
      const T* const x = norm.x + row * norm.x_stride + group * norm.width;
      T* const y = norm.out + row * norm.out_stride + group * norm.width;
      const float inverse = inverse_root(norm, row * norm.groups + group);
      for_each_vec(norm.width, [=](std::int64_t c, auto width) {
        const Vec factor = load(weight + c, width) + offset;
        store(y + c, load(x + c, width) * inverse * factor, width);
      });
    }
  }
}

/// With r = 1/sqrt(squares / n + epsilon), n the norm's width and products = Σ dy · weight · x:
/// dx = (dy · weight - x · r² · products / n) · r and dweight = Σ dy · x · r.
template <typename T>
[[gnu::flatten]] void group_norm_backward(const GroupNormRows<T>& norm, float* dweight) {
  const T* const weight = norm.weight;
  const float offset = norm.weight_offset;
  for (std::int64_t row = 0; row < norm.rows; ++row) {
    for (std::int64_t group = 0; group < norm.groups; ++group) {
      const T* const x = norm.x + row * norm.x_stride + group * norm.width;
      const T* const dy = norm.dy + row * norm.dy_stride + group * norm.width;
      T* const dx = norm.out + row * norm.out_stride + group * norm.width;
      const std::int64_t at = row * norm.groups + group;
      const float inverse = inverse_root(norm, at);
      const float along = norm.products[at] * inverse * norm.inverse_norm_width;
      for_each_vec(norm.width, [=](std::int64_t c, auto width) {
        const Vec slope = load(dy + c, width);
        const Vec x_hat = load(x + c, width) * inverse;
        store(dweight + c, load(dweight + c, width) + slope * x_hat, width);
        const Vec factor = load(weight + c, width) + offset;
        store(dx + c, (slope * factor - x_hat * along) * inverse, width);
      });
    }
  }
}

template <typename T>
void fill(TypedLoops<T>* loops) {
  loops->group_squares = group_squares<T>;
  loops->group_products = group_products<T>;
  loops->group_norm_forward = group_norm_forward<T>;
  loops->group_norm_backward = group_norm_backward<T>;
}

}  // namespace

void fill_group_norm(VectorLoops* loops) {
  fill(&loops->f32);
  fill(&loops->bf16);
  fill(&loops->f16);
}

}  // namespace dstrain::DSTRAIN_ISA
