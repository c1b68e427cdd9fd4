// Attention over a cache of keys and values, for generation.
//
// T new positions, H query heads, K key/value heads, D head dim, P rows of the cache; a row of qkv:
// q (H·D) ‖ k (K·D) ‖ v, of the cache: k ‖ v
#include <algorithm>

#include "kernels/attention_operands.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/operation_work.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/typed.h"

namespace dstrain {

// One task per key/value head and run of queries: a run reads the same keys and values again while
// they are in the cache, and one new position makes as many tasks as there are heads.
void CpuOps::attention_cached(const AttentionShape& shape,
                              std::int64_t first_position,
                              const AttentionReach& reach,
                              ConstTensor qkv,
                              Tensor cache,
                              Tensor out,
                              Tensor logsumexp_HT,
                              Stream& stream) {
  const std::int64_t added = shape.sequence;
  const std::int64_t kv_heads = shape.key_value_heads;
  const std::int64_t depth = shape.head_dim;
  const std::int64_t query_width = shape.query_heads * depth;
  const std::int64_t cached_width = 2 * kv_heads * depth;
  expect_attention_cached(shape, first_position, reach, qkv, cache, out, logsumexp_HT);
  stream.run([=, this, reach = reach] {
    note_moved(cache.rows(0, first_position + added), qkv, out);
    with_loops(loops_, qkv.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
      const std::int64_t qkv_width = query_width + cached_width;
      T* const stored = pointer<T>(cache);
      for (std::int64_t t = 0; t < added; ++t) {
        std::copy_n(pointer<T>(qkv) + t * qkv_width + query_width, cached_width,
                    stored + (first_position + t) * cached_width);
      }
      constexpr std::int64_t kQueries = 16;
      const std::int64_t runs = (added + kQueries - 1) / kQueries;
      const std::int64_t scores = first_position + added;
      const auto scratch = scratch_.lease(scores * threads_ * size_of(DType::kF32));
      parallel_for(threads_, runs * kv_heads, [&](std::int64_t index, int worker) {
        const std::int64_t kv = index % kv_heads;
        const std::int64_t first = index / kv_heads * kQueries;
        const std::int64_t group = shape.query_heads / kv_heads;
        for (std::int64_t t = first; t < std::min(first + kQueries, added); ++t) {
          const std::int64_t seen = keys_in_window(first_position + t + 1, reach.window);
          const std::int64_t oldest = first_position + t + 1 - seen;
          QueryAttention<T> task{};
          task.keys = seen;
          task.head_dim = depth;
          task.group = group;
          task.key_stride = cached_width;
          task.value_stride = cached_width;
          task.scale = score_scale(reach, depth);
          task.cap = reach.cap;
          task.slopes = slopes_of(reach, shape, kv);
          task.distance = seen - 1;
          task.q = pointer<T>(qkv) + t * qkv_width + kv * group * depth;
          task.k = stored + oldest * cached_width + kv * depth;
          task.v = stored + oldest * cached_width + (kv_heads + kv) * depth;
          task.out_written = pointer<T>(out) + t * query_width + kv * group * depth;
          task.sums_stride = added;
          if (!logsumexp_HT.empty()) {
            task.logsumexp_written = pointer<float>(logsumexp_HT) + kv * group * added + t;
          }
          task.scores = scratch.as<float>() + worker * scores;
          loops.query_attention(task);
        }
      });
    });
  });
}

}  // namespace dstrain
