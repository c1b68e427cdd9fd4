// Attention: shares key/value heads out over threads, and where there are few, tiles of queries and
// of keys.
//
// N = B · T tokens, S keys of a sequence, H query heads, K key/value heads, D head dim; a row of
// qkv: q (H·D) ‖ k (K·D) ‖ v
#include <algorithm>

#include "kernels/attention_operands.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/operation_work.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/typed.h"

namespace dstrain {
namespace {

/// The part that forward and backward share: the place of sequence b, key/value head kv.
template <typename T>
AttentionTask<T> task_at(const AttentionOperands& in, std::int64_t b, std::int64_t kv) {
  const AttentionShape& shape = in.shape;
  const std::int64_t group = shape.query_heads / shape.key_value_heads;
  const std::int64_t depth = shape.head_dim;
  const std::int64_t row = b * shape.sequence;
  const std::int64_t key = b * keys_of(in);
  AttentionTask<T> task{};
  task.sequence = shape.sequence;
  task.keys = keys_of(in);
  task.first_position = first_position_of(in);
  task.first_key = in.reach.first_key;
  task.head_dim = depth;
  task.group = group;
  task.query_stride = in.q.stride();
  task.key_stride = in.k.stride();
  task.value_stride = in.v.stride();
  task.out_stride = shape.query_heads * depth;
  task.scale = score_scale(in.reach, depth);
  task.cap = in.reach.cap;
  task.slopes = slopes_of(in.reach, shape, kv);
  task.window = in.reach.window;
  task.document_positions = document_positions_of(in, b);
  if (in.dropout.drops()) {
    task.dropout = sample_dropout(in.dropout, b);
    task.first_plane = static_cast<std::uint32_t>(in.dropout.first_head + kv * group);
  }
  task.q = in.q.template begin<T>() + row * task.query_stride + kv * group * depth;
  task.k = in.k.template begin<T>() + key * task.key_stride + kv * depth;
  task.v = in.v.template begin<T>() + key * task.value_stride + kv * depth;
  return task;
}

/// Blocks of kAttentionTile queries of all the heads that read a key/value head.
std::int64_t blocks_of(const AttentionShape& shape) {
  return (shape.sequence + kAttentionTile - 1) / kAttentionTile *
         (shape.query_heads / shape.key_value_heads);
}

/// Several tasks a thread, so that those that end late are short: of each of `pairs`.
std::int64_t pieces_of(int threads, std::int64_t pairs, std::int64_t most) {
  constexpr std::int64_t kTasksPerThread = 4;
  const std::int64_t wanted = (threads * kTasksPerThread + pairs - 1) / pairs;
  return threads == 1 ? 1 : std::clamp<std::int64_t>(wanted, 1, most);
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
                  ConstTensor cos_PR,
                  ConstTensor sin_PR,
                  ConstTensor positions_N,
                  Pass pass,
                  Stream& stream) {
  expect_rope(shape, qkv, cos_PR, sin_PR, positions_N);
  const std::int64_t tokens = shape.batch * shape.sequence;
  stream.run([=, this] {
    note_moved(qkv, qkv);
    constexpr std::int64_t kRows = 16;
    const std::int64_t width = qkv_width(shape);
    const auto* const positions = pointer<std::int32_t>(positions_N);
    with_loops(loops_, qkv.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
      parallel_pieces(threads_, tokens, kRows, [&](std::int64_t begin, std::int64_t end) {
        loops.rope({
            .rows = end - begin,
            .first_row = begin,
            .sequence = shape.sequence,
            .positions = positions == nullptr ? nullptr : positions + begin,
            .row_stride = width,
            .heads = shape.query_heads + shape.key_value_heads,
            .head_dim = shape.head_dim,
            .pairs = rotated_pairs(cos_PR),
            .direction = pass == Pass::kForward ? 1.0F : -1.0F,
            .cosine = pointer<float>(cos_PR),
            .sine = pointer<float>(sin_PR),
            .qkv = pointer<T>(qkv) + begin * width,
        });
      });
    });
  });
}

void CpuOps::attention_forward(const AttentionForward& attention, Stream& stream) {
  expect_attention(attention.in, attention.out, attention.logsumexp_BHT);
  stream.run([=, this] {
    note_attention(attention.in, 2, attention.out.bytes());
    attend(attention);
  });
}

// One task per (sequence, key/value head), split further over its tiles of queries where there
// are fewer such pairs than threads want. A tile of queries is computed alone, so the split does
// not change the result.
void CpuOps::attend(const AttentionForward& attention) {
  const auto& [in, out, logsumexp_BHT] = attention;
  const AttentionShape& shape = in.shape;
  const std::int64_t blocks = blocks_of(shape);
  const std::int64_t pairs = shape.batch * shape.key_value_heads;
  const std::int64_t pieces = pieces_of(threads_, pairs, blocks);
  with_loops(loops_, in.q.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
    const std::int64_t bytes = loops.attention_scratch_bytes(keys_of(attention.in), shape.head_dim);
    const auto scratch = scratch_.lease(bytes * threads_);
    parallel_for(threads_, pairs * pieces, [&](std::int64_t index, int worker) {
      const std::int64_t piece = index % pieces;
      const std::int64_t b = index / pieces / shape.key_value_heads;
      const std::int64_t kv = index / pieces % shape.key_value_heads;
      AttentionTask<T> task = task_at<T>(attention.in, b, kv);
      task.first_block = blocks * piece / pieces;
      task.last_block = blocks * (piece + 1) / pieces;
      task.out_written = pointer<T>(attention.out) + out_offset(shape, b, kv);
      task.logsumexp_written = pointer<float>(attention.logsumexp_BHT) + sum_offset(shape, b, kv);
      task.scratch = scratch.as<std::byte>() + worker * bytes;
      loops.attention_forward(task);
    });
  });
}

// One task per (sequence, key/value head), which makes five products of each pair of tiles. Where
// there are fewer such pairs than keep the threads busy, tasks of tiles of queries, which make dq
// of three products, and tasks of tiles of keys, which make dk and dv of four. Every sum is that of
// one task, in a fixed order over query heads and tiles, so the split does not change the result.
void CpuOps::attention_backward(const AttentionBackward& attention, Stream& stream) {
  expect_attention_backward(attention);
  stream.run([=, this, back = attention] {
    note_attention(back.in, 5, back.out.bytes() + back.dout.bytes());
    const AttentionOperands& in = back.in;
    const AttentionShape& shape = in.shape;
    const std::int64_t pairs = shape.batch * shape.key_value_heads;
    const std::int64_t rounds = (pairs + threads_ - 1) / threads_;
    const bool is_split = 5 * rounds * threads_ > 7 * pairs;
    const std::int64_t blocks = blocks_of(shape);
    const std::int64_t tiles = (keys_of(in) + kAttentionTile - 1) / kAttentionTile;
    const std::int64_t of_queries = is_split ? pieces_of(threads_, pairs, blocks) : 0;
    const std::int64_t of_keys = is_split ? pieces_of(threads_, pairs, tiles) : 1;
    const std::int64_t pieces = of_queries + of_keys;
    with_loops(loops_, in.q.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
      const std::int64_t bytes = loops.attention_scratch_bytes(keys_of(in), shape.head_dim);
      const auto scratch = scratch_.lease(bytes * threads_);
      parallel_for(threads_, pairs * pieces, [&](std::int64_t index, int worker) {
        const std::int64_t pair = index / pieces;
        const std::int64_t b = pair / shape.key_value_heads;
        const std::int64_t kv = pair % shape.key_value_heads;
        AttentionTask<T> task = task_at<T>(in, b, kv);
        task.last_block = blocks;
        task.last_key_tile = tiles;
        task.out = pointer<T>(back.out) + out_offset(shape, b, kv);
        task.dout = pointer<T>(back.dout) + out_offset(shape, b, kv);
        task.logsumexp = pointer<float>(back.logsumexp_BHT) + sum_offset(shape, b, kv);
        task.delta = pointer<float>(back.delta_BHT) + sum_offset(shape, b, kv);
        const std::int64_t row = b * shape.sequence;
        const std::int64_t key = b * keys_of(in);
        const std::int64_t group = shape.query_heads / shape.key_value_heads;
        task.dq_stride = back.dq.stride();
        task.dk_stride = back.dk.stride();
        task.dv_stride = back.dv.stride();
        task.dq = back.dq.template begin<T>() + row * task.dq_stride + kv * group * task.head_dim;
        task.dk = back.dk.template begin<T>() + key * task.dk_stride + kv * task.head_dim;
        task.dv = back.dv.template begin<T>() + key * task.dv_stride + kv * task.head_dim;
        task.scratch = scratch.as<std::byte>() + worker * bytes;
        const std::int64_t piece = index % pieces;
        if (is_split && piece < of_keys) {
          task.first_key_tile = tiles * piece / of_keys;
          task.last_key_tile = tiles * (piece + 1) / of_keys;
          task.dq = nullptr;
        } else if (is_split) {
          task.first_block = blocks * (piece - of_keys) / of_queries;
          task.last_block = blocks * (piece - of_keys + 1) / of_queries;
          task.dk = nullptr;
        }
        loops.attention_backward(task);
      });
    });
  });
}

}  // namespace dstrain
