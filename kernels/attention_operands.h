// The checks of attention's operands that all devices share. Shapes: kernels/ops.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/attention.h"
#include "kernels/core/expect.h"

namespace dstrain {

inline void check_attention_shape(const AttentionShape& shape) {
  check(shape.batch >= 1 && shape.sequence >= 1 && shape.query_heads >= 1 &&
            shape.key_value_heads >= 1 && shape.head_dim >= 1 &&
            shape.query_heads % shape.key_value_heads == 0,
        "attention: batch {}, sequence {}, {} query heads over {} key/value heads of {}",
        shape.batch, shape.sequence, shape.query_heads, shape.key_value_heads, shape.head_dim);
}

/// The factor that q · k is multiplied by, rounded once.
inline float attention_scale(std::int64_t head_dim) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
}

/// The same, unless the reach gives another.
inline float score_scale(const AttentionReach& reach, std::int64_t head_dim) {
  return reach.scale > 0.0F ? reach.scale : attention_scale(head_dim);
}

inline std::int64_t qkv_width(const AttentionShape& shape) {
  return (shape.query_heads + 2 * shape.key_value_heads) * shape.head_dim;
}

/// The number of pairs, R/2.
inline std::int64_t rotated_pairs(const ConstTensor& cos_PR) {
  return as_matrix(cos_PR).width;
}

inline void expect_rope(const AttentionShape& shape,
                        const Tensor& qkv,
                        const ConstTensor& cos_PR,
                        const ConstTensor& sin_PR,
                        const ConstTensor& positions_N) {
  check_attention_shape(shape);
  const auto [positions, pairs] = as_matrix(cos_PR);
  check(pairs >= 1 && 2 * pairs <= shape.head_dim, "rope: {} pairs of heads of {}", pairs,
        shape.head_dim);
  check(!positions_N.empty() || positions >= shape.sequence,
        "rope: tables of {} positions for sequences of {}", positions, shape.sequence);
  const std::int64_t tokens = shape.batch * shape.sequence;
  expect(qkv, "rope: qkv", qkv.dtype(), tokens * qkv_width(shape));
  if (!positions_N.empty()) {
    expect(positions_N, "rope: positions", DType::kI32, tokens);
  }
  expect(cos_PR, "rope: cos", DType::kF32, positions * pairs);
  expect(sin_PR, "rope: sin", DType::kF32, positions * pairs);
}

/// The number of keys of a sequence, S.
inline std::int64_t keys_of(const AttentionOperands& in) {
  return in.k.rows() / in.shape.batch;
}

/// The position of the first query among the keys; negative where it is before all of them.
inline std::int64_t first_position_of(const AttentionOperands& in) {
  return in.reach.first_query - in.reach.first_key;
}

/// The document positions of sequence b, in memory that the host reads; nullptr where it is one
/// document.
inline const std::int32_t* document_positions_of(const AttentionOperands& in, std::int64_t b) {
  const ConstTensor& positions = in.reach.document_positions;
  return positions.empty()
             ? nullptr
             : static_cast<const std::int32_t*>(positions.data()) + b * in.shape.sequence;
}

/// Whether causality alone hides keys, scores are the usual ones, and probabilities stay as they
/// are.
inline bool is_plain(const AttentionOperands& in) {
  return in.reach.scale == 0.0F && in.reach.cap == 0.0F && in.reach.slopes_H.empty() &&
         in.reach.document_positions.empty() && !in.dropout.drops() &&
         (in.reach.window == 0 || in.reach.window >= keys_of(in));
}

/// Whether all of them lie in rows q‖k‖v of one matrix.
template <typename Matrix>
bool is_packed(const AttentionShape& shape,
               const BasicColumns<Matrix>& q,
               const BasicColumns<Matrix>& k,
               const BasicColumns<Matrix>& v) {
  return q.stride() == qkv_width(shape) && q.first() == 0 && k.first() == q.width() &&
         v.first() == k.first() + k.width() && k.matrix().data() == q.matrix().data() &&
         v.matrix().data() == q.matrix().data();
}

inline void expect_columns(const ConstColumns& columns,
                           std::string_view name,
                           DType dtype,
                           std::int64_t rows,
                           std::int64_t width) {
  check(columns.dtype() == dtype && columns.rows() == rows && columns.width() == width,
        "attention: {} is {} × {} of {}, expected {} × {} of {}", name, columns.rows(),
        columns.width(), name_of(columns.dtype()), rows, width, name_of(dtype));
}

inline void expect_reach(const AttentionReach& reach, const AttentionShape& shape) {
  check(reach.window >= 0 && reach.cap >= 0.0F && reach.scale >= 0.0F,
        "attention: a window of {}, a cap of {} and scores of {} q · k", reach.window, reach.cap,
        reach.scale);
  expect_optional(reach.slopes_H, "attention: slopes", DType::kF32, shape.query_heads);
  check(reach.cap == 0.0F || reach.slopes_H.empty(), "attention: slopes of scores with a cap");
}

/// Of the query heads of key/value head kv, in memory that the host reads; nullptr where there are
/// none.
inline const float* slopes_of(const AttentionReach& reach,
                              const AttentionShape& shape,
                              std::int64_t kv) {
  return reach.slopes_H.empty()
             ? nullptr
             : pointer<float>(reach.slopes_H) + kv * (shape.query_heads / shape.key_value_heads);
}

inline void expect_attention(const AttentionOperands& in,
                             const ConstTensor& out,
                             const ConstTensor& logsumexp_BHT) {
  const AttentionShape& shape = in.shape;
  check_attention_shape(shape);
  const DType dtype = in.q.dtype();
  const std::int64_t tokens = shape.batch * shape.sequence;
  const std::int64_t keys = keys_of(in) * shape.batch;
  expect_reach(in.reach, shape);
  expect_dropout(in.dropout);
  check(!in.dropout.drops() || (in.reach.first_query >= 0 && in.reach.first_key >= 0),
        "attention: dropout of queries from position {} on and keys from {} on",
        in.reach.first_query, in.reach.first_key);
  expect_columns(in.q, "q", dtype, tokens, shape.query_heads * shape.head_dim);
  expect_columns(in.k, "k", dtype, keys, shape.key_value_heads * shape.head_dim);
  expect_columns(in.v, "v", dtype, keys, shape.key_value_heads * shape.head_dim);
  if (!in.reach.document_positions.empty()) {
    expect(in.reach.document_positions, "attention: positions in documents", DType::kI32, tokens);
  }
  expect(out, "attention: out", dtype, tokens * shape.query_heads * shape.head_dim);
  expect(logsumexp_BHT, "attention: logsumexp", DType::kF32, tokens * shape.query_heads);
}

inline void expect_attention_backward(const AttentionBackward& back) {
  const AttentionOperands& in = back.in;
  expect_attention(in, back.out, back.logsumexp_BHT);
  expect(back.dout, "attention: dout", in.q.dtype(), back.out.numel());
  expect(back.delta_BHT, "attention: delta", DType::kF32, back.logsumexp_BHT.numel());
  expect_columns(back.dq, "dq", in.q.dtype(), in.q.rows(), in.q.width());
  expect_columns(back.dk, "dk", in.q.dtype(), in.k.rows(), in.k.width());
  expect_columns(back.dv, "dv", in.q.dtype(), in.v.rows(), in.v.width());
}

inline void expect_merge(const AttentionShape& shape,
                         const ConstTensor& other_out,
                         const ConstTensor& other_logsumexp_BHT,
                         const ConstTensor& out,
                         const ConstTensor& logsumexp_BHT) {
  check_attention_shape(shape);
  const std::int64_t rows = shape.batch * shape.sequence * shape.query_heads;
  expect_compute_dtype(out.dtype(), "attention: out");
  expect(out, "attention: out", out.dtype(), rows * shape.head_dim);
  expect(other_out, "attention: the other out", out.dtype(), rows * shape.head_dim);
  expect(logsumexp_BHT, "attention: logsumexp", DType::kF32, rows);
  expect(other_logsumexp_BHT, "attention: the other logsumexp", DType::kF32, rows);
}

inline void expect_sinks(const AttentionShape& shape,
                         const ConstTensor& sinks_H,
                         const ConstTensor& out,
                         const ConstTensor& logsumexp_BHT) {
  check_attention_shape(shape);
  const std::int64_t rows = shape.batch * shape.sequence * shape.query_heads;
  expect_compute_dtype(sinks_H.dtype(), "attention: sinks");
  expect(sinks_H, "attention: sinks", sinks_H.dtype(), shape.query_heads);
  expect(out, "attention: out", out.dtype() == DType::kF32 ? DType::kF32 : sinks_H.dtype(),
         rows * shape.head_dim);
  expect(logsumexp_BHT, "attention: logsumexp", DType::kF32, rows);
}

inline void expect_sinks_backward(const AttentionShape& shape,
                                  const ConstTensor& sinks_H,
                                  const ConstTensor& out,
                                  const ConstTensor& logsumexp_BHT,
                                  const ConstTensor& dout,
                                  const ConstTensor& d_sinks_H) {
  expect_sinks(shape, sinks_H, out, logsumexp_BHT);
  expect(dout, "attention: dout", out.dtype(), out.numel());
  expect(d_sinks_H, "attention: gradient of sinks", DType::kF32, shape.query_heads);
}

/// The number of positions, among so many up to a query's own, that it sees through a window; 0: no
/// window.
inline std::int64_t keys_in_window(std::int64_t positions, std::int64_t window) {
  return window > 0 && window < positions ? window : positions;
}

inline void expect_attention_cached(const AttentionShape& shape,
                                    std::int64_t first_position,
                                    const AttentionReach& reach,
                                    const ConstTensor& qkv,
                                    const ConstTensor& cache,
                                    const ConstTensor& out,
                                    const ConstTensor& logsumexp_HT) {
  const std::int64_t added = shape.sequence;
  const std::int64_t kv_heads = shape.key_value_heads;
  const std::int64_t depth = shape.head_dim;
  expect_reach(reach, shape);
  check(shape.batch == 1 && added >= 1 && kv_heads >= 1 && depth >= 1 && first_position >= 0 &&
            shape.query_heads >= 1 && shape.query_heads % kv_heads == 0,
        "cached attention: batch {}, {} positions from {} on, {} query heads over "
        "{} key/value heads of {}",
        shape.batch, added, first_position, shape.query_heads, kv_heads, depth);
  const std::int64_t query_width = shape.query_heads * depth;
  const std::int64_t cached_width = 2 * kv_heads * depth;
  const auto [rows, row_width] = as_matrix(cache);
  check(row_width == cached_width && first_position + added <= rows,
        "cached attention: positions [{}, {}) in a cache of shape {}, expected rows of {}",
        first_position, first_position + added, cache.shape().to_string(), cached_width);
  expect(qkv, "cached attention: qkv", qkv.dtype(), added * (query_width + cached_width));
  expect(cache, "cached attention: cache", qkv.dtype(), rows * cached_width);
  expect(out, "cached attention: out", qkv.dtype(), added * query_width);
  expect_optional(logsumexp_HT, "cached attention: logsumexp", DType::kF32,
                  added * shape.query_heads);
}

}  // namespace dstrain
