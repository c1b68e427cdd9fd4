// Attention: shares tiles of queries (forward) and key/value heads (backward) out over threads.
//
// N = B · T tokens, H query heads, K key/value heads, D head dim; a row of qkv: q (H·D) ‖ k (K·D) ‖
// v
#include <algorithm>

#include "kernels/attention_operands.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/typed.h"

namespace dstrain {
namespace {

/// What forward and backward share: where sequence b, key/value head kv lies.
template <typename T>
AttentionTask<T> task_at(const AttentionShape& shape,
                         const ConstTensor& qkv,
                         std::int64_t b,
                         std::int64_t kv) {
  const std::int64_t group = shape.query_heads / shape.key_value_heads;
  const std::int64_t depth = shape.head_dim;
  const std::int64_t width = qkv_width(shape);
  const T* const row = pointer<T>(qkv) + b * shape.sequence * width;
  AttentionTask<T> task{};
  task.sequence = shape.sequence;
  task.head_dim = depth;
  task.group = group;
  task.row_stride = width;
  task.out_stride = shape.query_heads * depth;
  task.scale = attention_scale(depth);
  task.q = row + kv * group * depth;
  task.k = row + (shape.query_heads + kv) * depth;
  task.v = row + (shape.query_heads + shape.key_value_heads + kv) * depth;
  return task;
}

/// Offset of (b, first head of kv) in [N, H·D].
std::int64_t out_offset(const AttentionShape& shape, std::int64_t b, std::int64_t kv) {
  const std::int64_t group = shape.query_heads / shape.key_value_heads;
  return (b * shape.sequence * shape.query_heads + kv * group) * shape.head_dim;
}

/// Offset of (b, first head of kv) in [B, H, T].
std::int64_t sum_offset(const AttentionShape& shape, std::int64_t b, std::int64_t kv) {
  const std::int64_t group = shape.query_heads / shape.key_value_heads;
  return (b * shape.query_heads + kv * group) * shape.sequence;
}

}  // namespace

void CpuOps::rope(const AttentionShape& shape,
                  Tensor qkv,
                  ConstTensor cos_TD,
                  ConstTensor sin_TD,
                  Pass pass,
                  Stream& stream) {
  expect_rope(shape, qkv, cos_TD, sin_TD);
  const std::int64_t tokens = shape.batch * shape.sequence;
  stream.run([=, this] {
    constexpr std::int64_t kRows = 16;
    const std::int64_t width = qkv_width(shape);
    with_loops(loops_, qkv.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
      parallel_pieces(threads_, tokens, kRows, [&](std::int64_t begin, std::int64_t end) {
        loops.rope({
            .rows = end - begin,
            .first_row = begin,
            .sequence = shape.sequence,
            .row_stride = width,
            .heads = shape.query_heads + shape.key_value_heads,
            .head_dim = shape.head_dim,
            .direction = pass == Pass::kForward ? 1.0F : -1.0F,
            .cosine = pointer<float>(cos_TD),
            .sine = pointer<float>(sin_TD),
            .qkv = pointer<T>(qkv) + begin * width,
        });
      });
    });
  });
}

// One task per (sequence, key/value head), split further over its tiles of queries where there
// are fewer such pairs than threads want. A tile of queries is computed alone, so the split does
// not change the result.
void CpuOps::attention_forward(const AttentionShape& shape,
                               ConstTensor qkv,
                               Tensor out,
                               Tensor logsumexp_BHT,
                               Stream& stream) {
  expect_attention_forward(shape, qkv, out, logsumexp_BHT);
  stream.run([=, this] {
    const std::int64_t tiles = (shape.sequence + kAttentionTile - 1) / kAttentionTile;
    const std::int64_t blocks = tiles * (shape.query_heads / shape.key_value_heads);
    const std::int64_t pairs = shape.batch * shape.key_value_heads;
    constexpr std::int64_t kTasksPerThread = 4;
    const std::int64_t wanted = (threads_ * kTasksPerThread + pairs - 1) / pairs;
    const std::int64_t pieces = threads_ == 1 ? 1 : std::clamp<std::int64_t>(wanted, 1, blocks);
    with_loops(loops_, qkv.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
      const std::int64_t bytes = loops.attention_scratch_bytes(shape.sequence, shape.head_dim);
      const auto scratch = scratch_.lease(bytes * threads_);
      parallel_for(threads_, pairs * pieces, [&](std::int64_t index, int worker) {
        const std::int64_t piece = index % pieces;
        const std::int64_t b = index / pieces / shape.key_value_heads;
        const std::int64_t kv = index / pieces % shape.key_value_heads;
        AttentionTask<T> task = task_at<T>(shape, qkv, b, kv);
        task.first_block = blocks * piece / pieces;
        task.last_block = blocks * (piece + 1) / pieces;
        task.out_written = pointer<T>(out) + out_offset(shape, b, kv);
        task.logsumexp_written = pointer<float>(logsumexp_BHT) + sum_offset(shape, b, kv);
        task.scratch = scratch.as<std::byte>() + worker * bytes;
        loops.attention_forward(task);
      });
    });
  });
}

// One task per (sequence, key/value head): it alone adds to dk and dv of that head, in a fixed
// order over query heads and tiles.
void CpuOps::attention_backward(const AttentionShape& shape,
                                ConstTensor qkv,
                                ConstTensor out,
                                ConstTensor logsumexp_BHT,
                                ConstTensor dout,
                                Tensor delta_BHT,
                                Tensor dqkv,
                                Stream& stream) {
  expect_attention_backward(shape, qkv, out, logsumexp_BHT, dout, delta_BHT, dqkv);
  stream.run([=, this] {
    const std::int64_t pairs = shape.batch * shape.key_value_heads;
    with_loops(loops_, qkv.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
      const std::int64_t bytes = loops.attention_scratch_bytes(shape.sequence, shape.head_dim);
      const auto scratch = scratch_.lease(bytes * threads_);
      parallel_for(threads_, pairs, [&](std::int64_t pair, int worker) {
        const std::int64_t b = pair / shape.key_value_heads;
        const std::int64_t kv = pair % shape.key_value_heads;
        AttentionTask<T> task = task_at<T>(shape, qkv, b, kv);
        task.out = pointer<T>(out) + out_offset(shape, b, kv);
        task.dout = pointer<T>(dout) + out_offset(shape, b, kv);
        task.logsumexp = pointer<float>(logsumexp_BHT) + sum_offset(shape, b, kv);
        task.delta = pointer<float>(delta_BHT) + sum_offset(shape, b, kv);
        T* const base = pointer<T>(dqkv);
        task.dq = base + (task.q - pointer<T>(qkv));
        task.dk = base + (task.k - pointer<T>(qkv));
        task.dv = base + (task.v - pointer<T>(qkv));
        task.scratch = scratch.as<std::byte>() + worker * bytes;
        loops.attention_backward(task);
      });
    });
  });
}

}  // namespace dstrain
