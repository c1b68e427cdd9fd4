// How partial results of attention, over blocks of the keys, become those over all of them.
//
// N = B · T tokens, H query heads, D head dim
#include "kernels/attention_operands.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/typed.h"
#include "kernels/math/merge_weights.h"

namespace dstrain {

// Pieces of tokens, whose logsumexps of a head are neighbours in memory.
void CpuOps::merge_attention(const AttentionShape& shape,
                             ConstTensor other_out,
                             ConstTensor other_logsumexp_BHT,
                             Tensor out,
                             Tensor logsumexp_BHT,
                             Stream& stream) {
  expect_merge(shape, other_out, other_logsumexp_BHT, out, logsumexp_BHT);
  stream.run([=, this] {
    constexpr std::int64_t kTokens = 16;
    const std::int64_t depth = shape.head_dim;
    float* const sums = pointer<float>(logsumexp_BHT);
    const float* const other_sums = pointer<float>(other_logsumexp_BHT);
    with_loops(loops_, out.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
      const auto merge_token = [&](std::int64_t token) {
        const std::int64_t b = token / shape.sequence;
        const std::int64_t t = token % shape.sequence;
        for (std::int64_t head = 0; head < shape.query_heads; ++head) {
          const std::int64_t at = (b * shape.query_heads + head) * shape.sequence + t;
          const MergeWeights weights = merge_weights(sums[at], other_sums[at]);
          sums[at] = weights.logsumexp;
          const std::int64_t row = (token * shape.query_heads + head) * depth;
          loops.weigh(pointer<T>(other_out) + row, weights.others, pointer<T>(out) + row,
                      weights.mine, depth);
        }
      };
      parallel_pieces(threads_, shape.batch * shape.sequence, kTokens,
                      [&](std::int64_t begin, std::int64_t end) {
                        for (std::int64_t token = begin; token < end; ++token) {
                          merge_token(token);
                        }
                      });
    });
  });
}

}  // namespace dstrain
