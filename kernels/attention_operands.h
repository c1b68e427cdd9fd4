// The checks of attention's operands that all devices share. Shapes: kernels/ops.h.
#pragma once

#include <cmath>

#include "kernels/core/expect.h"
#include "kernels/ops.h"

namespace dstrain {

inline void check_attention_shape(const AttentionShape& shape) {
  check(shape.batch >= 1 && shape.sequence >= 1 && shape.query_heads >= 1 &&
            shape.key_value_heads >= 1 && shape.head_dim >= 1 &&
            shape.query_heads % shape.key_value_heads == 0,
        "attention: batch {}, sequence {}, {} query heads over {} key/value heads of {}",
        shape.batch, shape.sequence, shape.query_heads, shape.key_value_heads, shape.head_dim);
}

/// What q · k is multiplied with, rounded once.
inline float attention_scale(std::int64_t head_dim) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
}

inline std::int64_t qkv_width(const AttentionShape& shape) {
  return (shape.query_heads + 2 * shape.key_value_heads) * shape.head_dim;
}

inline void expect_rope(const AttentionShape& shape,
                        const Tensor& qkv,
                        const ConstTensor& cos_TD,
                        const ConstTensor& sin_TD) {
  check_attention_shape(shape);
  check(shape.head_dim % 2 == 0, "rope: head dim {} is odd", shape.head_dim);
  expect(qkv, "rope: qkv", qkv.dtype(), shape.batch * shape.sequence * qkv_width(shape));
  expect(cos_TD, "rope: cos", DType::kF32, shape.sequence * shape.head_dim / 2);
  expect(sin_TD, "rope: sin", DType::kF32, shape.sequence * shape.head_dim / 2);
}

inline void expect_attention_forward(const AttentionShape& shape,
                                     const ConstTensor& qkv,
                                     const ConstTensor& out,
                                     const ConstTensor& logsumexp_BHT) {
  check_attention_shape(shape);
  const std::int64_t tokens = shape.batch * shape.sequence;
  expect(qkv, "attention: qkv", qkv.dtype(), tokens * qkv_width(shape));
  expect(out, "attention: out", qkv.dtype(), tokens * shape.query_heads * shape.head_dim);
  expect(logsumexp_BHT, "attention: logsumexp", DType::kF32, tokens * shape.query_heads);
}

inline void expect_attention_backward(const AttentionShape& shape,
                                      const ConstTensor& qkv,
                                      const ConstTensor& out,
                                      const ConstTensor& logsumexp_BHT,
                                      const ConstTensor& dout,
                                      const ConstTensor& delta_BHT,
                                      const ConstTensor& dqkv) {
  expect_attention_forward(shape, qkv, out, logsumexp_BHT);
  expect(dqkv, "attention: dqkv", qkv.dtype(), qkv.numel());
  expect(dout, "attention: dout", qkv.dtype(), out.numel());
  expect(delta_BHT, "attention: delta", DType::kF32, logsumexp_BHT.numel());
}

/// Of so many positions up to a query's own, those that it sees through a window; 0: no window.
inline std::int64_t keys_in_window(std::int64_t positions, std::int64_t window) {
  return window > 0 && window < positions ? window : positions;
}

inline void expect_attention_cached(const AttentionShape& shape,
                                    std::int64_t first_position,
                                    std::int64_t window,
                                    const ConstTensor& qkv,
                                    const ConstTensor& cache,
                                    const ConstTensor& out) {
  const std::int64_t added = shape.sequence;
  const std::int64_t kv_heads = shape.key_value_heads;
  const std::int64_t depth = shape.head_dim;
  check(
      shape.batch == 1 && added >= 1 && kv_heads >= 1 && depth >= 1 && first_position >= 0 &&
          window >= 0 && shape.query_heads >= 1 && shape.query_heads % kv_heads == 0,
      "cached attention: batch {}, {} positions from {} on in a window of {}, {} query heads over "
      "{} key/value heads of {}",
      shape.batch, added, first_position, window, shape.query_heads, kv_heads, depth);
  const std::int64_t query_width = shape.query_heads * depth;
  const std::int64_t cached_width = 2 * kv_heads * depth;
  const auto [rows, row_width] = as_matrix(cache);
  check(row_width == cached_width && first_position + added <= rows,
        "cached attention: positions [{}, {}) in a cache of shape {}, expected rows of {}",
        first_position, first_position + added, cache.shape().to_string(), cached_width);
  expect(qkv, "cached attention: qkv", qkv.dtype(), added * (query_width + cached_width));
  expect(cache, "cached attention: cache", qkv.dtype(), rows * cached_width);
  expect(out, "cached attention: out", qkv.dtype(), added * query_width);
}

}  // namespace dstrain
