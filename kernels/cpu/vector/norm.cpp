// LayerNorm and RMSNorm over rows that stay in the first-level cache between their passes.
#include "kernels/cpu/vector/parts.h"
#include "kernels/cpu/vector/vec.h"

namespace dstrain::DSTRAIN_ISA {
namespace {

/// residual = x + delta, and the sum of what was stored.
template <typename T>
DSTRAIN_INLINE float add_and_sum(const T* x, const T* delta, T* residual, std::int64_t width_C) {
  Vec total[2] = {};
  for_each_vec_pair(width_C, [=, &total](std::int64_t c, auto width, int chain) {
    const Vec value = rounded_as<T>(load(x + c, width) + load(delta + c, width));
    store(residual + c, value, width);
    total[chain] += value;
  });
  return sum_lanes(total[0] + total[1]);
}

template <typename T>
DSTRAIN_INLINE float sum_row(const T* x, std::int64_t width_C) {
  Vec total[2] = {};
  for_each_vec_pair(width_C, [=, &total](std::int64_t c, auto width, int chain) {
    total[chain] += load(x + c, width);
  });
  return sum_lanes(total[0] + total[1]);
}

/// Two passes (mean, then squared distance from it): one pass over x and x² loses digits where
/// the mean is large compared with the deviation.
template <typename T>
[[gnu::flatten]] void norm_forward(const NormForwardRows<T>& norm) {
  const std::int64_t width_C = norm.width;
  const float inverse_width = 1.0F / static_cast<float>(width_C);
  for (std::int64_t row = 0; row < norm.rows; ++row) {
    const T* x = norm.x + row * width_C;
    float total = 0.0F;
    if (norm.delta != nullptr) {
      T* residual = norm.residual + row * width_C;
      total = add_and_sum(x, norm.delta + row * width_C, residual, width_C);
      x = residual;
    } else if (norm.centered) {
      total = sum_row(x, width_C);
    }
    const float mean = norm.centered ? total * inverse_width : 0.0F;
    Vec squares[2] = {};
    for_each_vec_pair(width_C, [=, &squares](std::int64_t c, auto width, int chain) {
      const Vec distance = covered(load(x + c, width) - mean, width);
      squares[chain] += distance * distance;
    });
    const float variance = sum_lanes(squares[0] + squares[1]) * inverse_width;
    const float inverse_deviation = 1.0F / __builtin_sqrtf(variance + norm.epsilon);
    norm.stats[2 * row] = mean;
    norm.stats[2 * row + 1] = inverse_deviation;
    T* y = norm.y + row * width_C;
    const T* weight = norm.weight;
    const T* bias = norm.bias;
    const float offset = norm.weight_offset;
    for_each_vec(width_C, [=](std::int64_t c, auto width) {
      Vec value =
          (load(x + c, width) - mean) * inverse_deviation * (load(weight + c, width) + offset);
      if (bias != nullptr) {
        value += load(bias + c, width);
      }
      store(y + c, value, width);
    });
  }
}

/// With x̂ = (x - mean) / deviation and g = dy · weight:
/// dx = (g - mean(g) - x̂ mean(g x̂)) / deviation; RMSNorm lacks the middle term.
template <typename T>
[[gnu::flatten]] void norm_backward(const NormBackwardRows<T>& norm) {
  const std::int64_t width_C = norm.width;
  const float inverse_width = 1.0F / static_cast<float>(width_C);
  const T* weight = norm.weight;
  const float offset = norm.weight_offset;
  float* dweight = norm.dweight;
  float* dbias = norm.dbias;
  const bool add_to_dx = norm.add_to_dx;
  for (std::int64_t row = 0; row < norm.rows; ++row) {
    const T* x = norm.x + row * width_C;
    const T* dy = norm.dy + row * width_C;
    T* dx = norm.dx + row * width_C;
    const float mean = norm.stats[2 * row];
    const float inverse_deviation = norm.stats[2 * row + 1];
    Vec sum_g[2] = {};
    Vec sum_gx[2] = {};
    for_each_vec_pair(width_C, [=, &sum_g, &sum_gx](std::int64_t c, auto width, int chain) {
      const Vec dy_c = load(dy + c, width);
      const Vec x_hat = (load(x + c, width) - mean) * inverse_deviation;
      const Vec g = dy_c * (load(weight + c, width) + offset);
      sum_g[chain] += g;
      sum_gx[chain] += g * x_hat;
      store(dweight + c, load(dweight + c, width) + dy_c * x_hat, width);
      if (dbias != nullptr) {
        store(dbias + c, load(dbias + c, width) + dy_c, width);
      }
    });
    const float mean_g = norm.centered ? sum_lanes(sum_g[0] + sum_g[1]) * inverse_width : 0.0F;
    const float mean_gx = sum_lanes(sum_gx[0] + sum_gx[1]) * inverse_width;
    for_each_vec(width_C, [=](std::int64_t c, auto width) {
      const Vec x_hat = (load(x + c, width) - mean) * inverse_deviation;
      const Vec g = load(dy + c, width) * (load(weight + c, width) + offset);
      Vec value = (g - mean_g - x_hat * mean_gx) * inverse_deviation;
      if (add_to_dx) {
        value += load(dx + c, width);
      }
      store(dx + c, value, width);
    });
  }
}

template <typename T>
void fill(TypedLoops<T>* loops) {
  loops->norm_forward = norm_forward<T>;
  loops->norm_backward = norm_backward<T>;
}

}  // namespace

void fill_norm(VectorLoops* loops) {
  fill(&loops->f32);
  fill(&loops->bf16);
  fill(&loops->f16);
}

}  // namespace dstrain::DSTRAIN_ISA
