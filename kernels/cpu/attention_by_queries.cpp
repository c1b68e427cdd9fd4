// Attention where the tiles of flash_attention.h do not fit: keys of other positions than the
// queries'. One query at a time goes over the keys that it sees. Also how partial results are
// merged.
//
// B sequences of T queries and S keys, H query heads, K key/value heads, D head dim
#include <algorithm>

#include "kernels/attention_operands.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/typed.h"
#include "kernels/math/merge_weights.h"

namespace dstrain {
namespace {

/// The place of query t of sequence b, and of the keys that it sees, for the heads of kv.
template <typename T>
QueryAttention<T> query_at(const AttentionOperands& in,
                           std::int64_t b,
                           std::int64_t kv,
                           std::int64_t t) {
  const AttentionShape& shape = in.shape;
  const std::int64_t depth = shape.head_dim;
  const std::int64_t group = shape.query_heads / shape.key_value_heads;
  const VisibleKeys seen = keys_seen_by(in, document_positions_of(in, b), t);
  const std::int64_t key = b * keys_of(in) + seen.begin;
  QueryAttention<T> task{};
  task.keys = std::max<std::int64_t>(0, seen.end - seen.begin);
  task.head_dim = depth;
  task.group = group;
  task.key_stride = in.k.stride();
  task.value_stride = in.v.stride();
  task.scale = score_scale(in.reach, depth);
  task.cap = in.reach.cap;
  task.slopes = slopes_of(in.reach, shape, kv);
  task.distance = first_position_of(in) + t - seen.begin;
  task.q = in.q.template begin<T>() + (b * shape.sequence + t) * in.q.stride() + kv * group * depth;
  task.k = in.k.template begin<T>() + key * task.key_stride + kv * depth;
  task.v = in.v.template begin<T>() + key * task.value_stride + kv * depth;
  task.sums_stride = shape.sequence;
  return task;
}

/// Offsets of (b, first head of kv, t) in [B·T, H·D] and in [B, H, T].
struct Offsets {
  std::int64_t out;
  std::int64_t sums;

  Offsets(const AttentionShape& shape, std::int64_t b, std::int64_t kv, std::int64_t t) {
    const std::int64_t head = kv * (shape.query_heads / shape.key_value_heads);
    out = ((b * shape.sequence + t) * shape.query_heads + head) * shape.head_dim;
    sums = (b * shape.query_heads + head) * shape.sequence + t;
  }
};

void round_to(float value, float& to) {
  to = value;
}
void round_to(float value, BF16& to) {
  to = to_bf16(value);
}
void round_to(float value, F16& to) {
  to = to_f16(value);
}

/// Copies rows of `width` from sums to columns of a matrix.
template <typename T>
void write_rows(
    const float* sums, std::int64_t rows, std::int64_t width, T* to, std::int64_t stride) {
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t c = 0; c < width; ++c) {
      round_to(sums[row * width + c], to[row * stride + c]);
    }
  }
}

}  // namespace

void CpuOps::attention_by_queries(const AttentionForward& attention, Stream& stream) {
  stream.run([=, this] {
    const AttentionOperands& in = attention.in;
    const AttentionShape& shape = in.shape;
    constexpr std::int64_t kQueries = 16;
    const std::int64_t runs = (shape.sequence + kQueries - 1) / kQueries;
    const std::int64_t keys = keys_of(in);
    const auto scratch =
        scratch_.lease(std::max<std::int64_t>(1, keys) * threads_ * size_of(DType::kF32));
    with_loops(loops_, in.q.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
      const std::int64_t pairs = shape.batch * shape.key_value_heads;
      parallel_for(threads_, pairs * runs, [&](std::int64_t index, int worker) {
        const std::int64_t b = index / runs / shape.key_value_heads;
        const std::int64_t kv = index / runs % shape.key_value_heads;
        const std::int64_t first = index % runs * kQueries;
        for (std::int64_t t = first; t < std::min(first + kQueries, shape.sequence); ++t) {
          QueryAttention<T> task = query_at<T>(in, b, kv, t);
          const Offsets at(shape, b, kv, t);
          task.out_written = pointer<T>(attention.out) + at.out;
          task.logsumexp_written = pointer<float>(attention.logsumexp_BHT) + at.sums;
          task.scores = scratch.as<float>() + worker * keys;
          loops.query_attention(task);
        }
      });
    });
  });
}

// One task per (sequence, key/value head), as in attention_backward: it alone adds to their dk, dv.
void CpuOps::attention_by_queries_backward(const AttentionBackward& attention, Stream& stream) {
  stream.run([=, this] {
    const AttentionBackward& back = attention;
    const AttentionOperands& in = back.in;
    const AttentionShape& shape = in.shape;
    const std::int64_t depth = shape.head_dim;
    const std::int64_t keys = keys_of(in);
    const std::int64_t floats = (2 * keys + 1) * depth;  // dk, dv and dq of a query
    const auto scratch = scratch_.lease(floats * threads_ * size_of(DType::kF32));
    with_loops(loops_, in.q.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
      const std::int64_t pairs = shape.batch * shape.key_value_heads;
      parallel_for(threads_, pairs, [&](std::int64_t pair, int worker) {
        const std::int64_t b = pair / shape.key_value_heads;
        const std::int64_t kv = pair % shape.key_value_heads;
        const std::int64_t group = shape.query_heads / shape.key_value_heads;
        float* const dk = scratch.as<float>() + worker * floats;
        float* const dv = dk + keys * depth;
        std::fill_n(dk, 2 * keys * depth, 0.0F);
        for (std::int64_t t = 0; t < shape.sequence; ++t) {
          QueryAttention<T> task = query_at<T>(in, b, kv, t);
          const Offsets at(shape, b, kv, t);
          const std::int64_t first_seen =
              task.keys > 0 ? keys_seen_by(in, document_positions_of(in, b), t).begin : 0;
          task.out = pointer<T>(back.out) + at.out;
          task.dout = pointer<T>(back.dout) + at.out;
          task.logsumexp = pointer<float>(back.logsumexp_BHT) + at.sums;
          task.delta = pointer<float>(back.delta_BHT) + at.sums;
          task.dq = back.dq.template begin<T>() + (b * shape.sequence + t) * back.dq.stride() +
                    kv * group * depth;
          task.dq_sums = dv + keys * depth;
          task.dk = dk + first_seen * depth;
          task.dv = dv + first_seen * depth;
          loops.query_attention_backward(task);
        }
        const std::int64_t row = b * keys;
        write_rows(dk, keys, depth,
                   back.dk.template begin<T>() + row * back.dk.stride() + kv * depth,
                   back.dk.stride());
        write_rows(dv, keys, depth,
                   back.dv.template begin<T>() + row * back.dv.stride() + kv * depth,
                   back.dv.stride());
      });
    });
  });
}

void CpuOps::merge_attention(const AttentionShape& shape,
                             ConstTensor other_out,
                             ConstTensor other_logsumexp_BHT,
                             Tensor out,
                             Tensor logsumexp_BHT,
                             Stream& stream) {
  expect_merge(shape, other_out, other_logsumexp_BHT, out, logsumexp_BHT);
  stream.run([=, this] {
    with_loops(loops_, out.dtype(), [&]<typename T>(const TypedLoops<T>& /*loops*/) {
      parallel_for(threads_, shape.batch * shape.sequence, [&](std::int64_t token, int /*worker*/) {
        const std::int64_t b = token / shape.sequence;
        const std::int64_t t = token % shape.sequence;
        for (std::int64_t head = 0; head < shape.query_heads; ++head) {
          const std::int64_t at = (b * shape.query_heads + head) * shape.sequence + t;
          const MergeWeights weights = merge_weights(pointer<float>(logsumexp_BHT)[at],
                                                     pointer<float>(other_logsumexp_BHT)[at]);
          pointer<float>(logsumexp_BHT)[at] = weights.logsumexp;
          const std::int64_t row = (token * shape.query_heads + head) * shape.head_dim;
          for (std::int64_t d = row; d < row + shape.head_dim; ++d) {
            T& mine = pointer<T>(out)[d];
            round_to(
                weights.mine * to_float(mine) + weights.others * to_float(pointer<T>(other_out)[d]),
                mine);
          }
        }
      });
    });
  });
}

}  // namespace dstrain
