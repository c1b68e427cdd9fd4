// Attention over a cache of keys and values, for generation.
//
// T new positions, H query heads, K key/value heads, D head dim, P rows of the cache; a row of qkv:
// q (H·D) ‖ k (K·D) ‖ v, of the cache: k ‖ v
#include <algorithm>
#include <cstring>

#include "kernels/attention_operands.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/operation_work.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/typed.h"

namespace dstrain {

// Several queries go through tiles, as in training; a few, one after the other.
void CpuOps::attention_cached(const AttentionShape& shape,
                              std::int64_t first_position,
                              const AttentionReach& reach,
                              ConstTensor qkv,
                              Tensor cache,
                              Tensor out,
                              Tensor logsumexp_HT,
                              Stream& stream) {
  expect_attention_cached(shape, first_position, reach, qkv, cache, out, logsumexp_HT);
  stream.run([=, this, reach = reach] {
    constexpr std::int64_t kFewQueries = 4;
    const std::int64_t added = shape.sequence;
    const std::int64_t query_width = shape.query_heads * shape.head_dim;
    const std::int64_t key_width = shape.key_value_heads * shape.head_dim;
    const std::int64_t row_bytes = 2 * key_width * size_of(qkv.dtype());
    const Tensor seen = cache.rows(0, first_position + added);
    for (std::int64_t t = 0; t < added; ++t) {
      std::memcpy(seen.rows(first_position + t, first_position + t + 1).data(),
                  pointer<std::byte>(qkv.rows(t, t + 1)) + query_width * size_of(qkv.dtype()),
                  static_cast<std::size_t>(row_bytes));
    }
    AttentionReach own = reach;
    own.first_query = first_position;
    own.first_key = 0;
    own.document_positions = {};
    const AttentionOperands in{.shape = shape,
                               .reach = own,
                               .q = ConstColumns(qkv, 0, query_width),
                               .k = ConstColumns(seen, 0, key_width),
                               .v = ConstColumns(seen, key_width, key_width)};
    if (added <= kFewQueries) {
      note_moved(seen, qkv, out);
      attend_one_by_one(in, out, logsumexp_HT);
      return;
    }
    note_attention(in, 2, seen.bytes() + out.bytes());
    const std::int64_t sums = shape.query_heads * added;
    const auto scratch = scratch_.lease(logsumexp_HT.empty() ? sums * size_of(DType::kF32) : 0);
    attend({.in = in,
            .out = out,
            .logsumexp_BHT = logsumexp_HT.empty()
                                 ? Tensor(scratch.as<float>(), DType::kF32, Shape{sums})
                                 : logsumexp_HT});
  });
}

// One task per query and key/value head.
void CpuOps::attend_one_by_one(const AttentionOperands& in, Tensor out, Tensor logsumexp_HT) {
  const AttentionShape& shape = in.shape;
  const std::int64_t depth = shape.head_dim;
  const std::int64_t kv_heads = shape.key_value_heads;
  const std::int64_t group = shape.query_heads / kv_heads;
  with_loops(loops_, in.q.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
    const std::int64_t scores = keys_of(in);
    const auto scratch = scratch_.lease(scores * threads_ * size_of(DType::kF32));
    parallel_for(threads_, shape.sequence * kv_heads, [&](std::int64_t index, int worker) {
      const std::int64_t kv = index % kv_heads;
      const std::int64_t t = index / kv_heads;
      const std::int64_t position = in.reach.first_query + t;
      const std::int64_t seen = keys_in_window(position + 1, in.reach.window);
      const std::int64_t oldest = position + 1 - seen;
      QueryAttention<T> task{};
      task.keys = seen;
      task.head_dim = depth;
      task.group = group;
      task.key_stride = in.k.stride();
      task.value_stride = in.v.stride();
      task.scale = score_scale(in.reach, depth);
      task.cap = in.reach.cap;
      task.slopes = slopes_of(in.reach, shape, kv);
      task.distance = seen - 1;
      task.q = in.q.begin<T>() + t * in.q.stride() + kv * group * depth;
      task.k = in.k.begin<T>() + oldest * task.key_stride + kv * depth;
      task.v = in.v.begin<T>() + oldest * task.value_stride + kv * depth;
      task.out_written = pointer<T>(out) + (t * kv_heads + kv) * group * depth;
      task.sums_stride = shape.sequence;
      if (!logsumexp_HT.empty()) {
        task.logsumexp_written = pointer<float>(logsumexp_HT) + kv * group * shape.sequence + t;
      }
      task.scores = scratch.as<float>() + worker * scores;
      loops.query_attention(task);
    });
  });
}

}  // namespace dstrain
