// Scores that belong to no key and join the softmax over all of them.
//
// B sequences of T queries, H query heads, D head dim
#include <algorithm>

#include "kernels/attention_operands.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/typed.h"
#include "kernels/math/merge_weights.h"

namespace dstrain {
namespace {

/// The sink of a head, in memory that the host reads.
float sink_of(const ConstTensor& sinks_H, std::int64_t head) {
  switch (sinks_H.dtype()) {
    case DType::kBF16:
      return to_float(pointer<BF16>(sinks_H)[head]);
    case DType::kF16:
      return to_float(pointer<F16>(sinks_H)[head]);
    default:
      return pointer<float>(sinks_H)[head];
  }
}

void scale(const TypedLoops<float>& loops, float factor, float* x, std::int64_t n) {
  loops.scale_to_f32(x, factor, x, false, n);
}
void scale(const TypedLoops<BF16>& loops, float factor, BF16* x, std::int64_t n) {
  loops.scale_to_bf16(x, factor, x, false, n);
}
void scale(const TypedLoops<F16>& loops, float factor, F16* x, std::int64_t n) {
  loops.scale_to_f16(x, factor, x, false, n);
}

}  // namespace

void CpuOps::add_sinks(const AttentionShape& shape,
                       ConstTensor sinks_H,
                       Tensor out,
                       Tensor logsumexp_BHT,
                       Stream& stream) {
  expect_sinks(shape, sinks_H, out, logsumexp_BHT);
  stream.run([=, this] {
    constexpr std::int64_t kTokens = 16;
    with_loops(loops_, out.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
      parallel_pieces(threads_, shape.batch * shape.sequence, kTokens, [&](auto begin, auto end) {
        for (std::int64_t token = begin; token < end; ++token) {
          const std::int64_t b = token / shape.sequence;
          for (std::int64_t head = 0; head < shape.query_heads; ++head) {
            float& logsumexp =
                pointer<float>(logsumexp_BHT)[(b * shape.query_heads + head) * shape.sequence +
                                              token % shape.sequence];
            const MergeWeights weights = merge_weights(logsumexp, sink_of(sinks_H, head));
            logsumexp = weights.logsumexp;
            scale(loops, weights.mine,
                  pointer<T>(out) + (token * shape.query_heads + head) * shape.head_dim,
                  shape.head_dim);
          }
        }
      });
    });
  });
}

// A task for each head and run of positions of a sequence, whose sums are then added up in order.
void CpuOps::sinks_backward(const AttentionShape& shape,
                            ConstTensor sinks_H,
                            ConstTensor out,
                            ConstTensor logsumexp_BHT,
                            ConstTensor dout,
                            Tensor d_sinks_H,
                            Write write,
                            Stream& stream) {
  expect_sinks_backward(shape, sinks_H, out, logsumexp_BHT, dout, d_sinks_H);
  stream.run([=, this] {
    constexpr std::int64_t kPositions = 1024;
    const std::int64_t runs = (shape.sequence + kPositions - 1) / kPositions;
    const std::int64_t parts = shape.batch * runs;  // of a head
    const auto scratch = scratch_.lease(parts * shape.query_heads * size_of(DType::kF64));
    auto* const sums = scratch.as<double>();
    with_loops(loops_, out.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
      parallel_for(threads_, parts * shape.query_heads, [&](std::int64_t index, int /*worker*/) {
        const std::int64_t head = index / parts;
        const std::int64_t b = index % parts / runs;
        const std::int64_t first = index % runs * kPositions;
        const float sink = sink_of(sinks_H, head);
        double sum = 0.0;
        for (std::int64_t t = first; t < std::min(first + kPositions, shape.sequence); ++t) {
          const float logsumexp =
              pointer<float>(logsumexp_BHT)[(b * shape.query_heads + head) * shape.sequence + t];
          const std::int64_t row =
              ((b * shape.sequence + t) * shape.query_heads + head) * shape.head_dim;
          const float delta =
              loops.dot(pointer<T>(out) + row, pointer<T>(dout) + row, shape.head_dim);
          sum += static_cast<double>(fast_exp(sink - logsumexp) * delta);
        }
        sums[index] = sum;
      });
    });
    for (std::int64_t head = 0; head < shape.query_heads; ++head) {
      double total = 0.0;
      for (std::int64_t part = 0; part < parts; ++part) {
        total += sums[head * parts + part];
      }
      float& d_sink = pointer<float>(d_sinks_H)[head];
      d_sink = (write == Write::kAdd ? d_sink : 0.0F) - static_cast<float>(total);
    }
  });
}

}  // namespace dstrain
