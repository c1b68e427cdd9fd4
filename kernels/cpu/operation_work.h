// These functions tell a trace that is being recorded what an operation computes and moves. They
// are called within the operation (Stream::run). Bytes are the fewest that it must read and write.
#pragma once

#include <algorithm>

#include "kernels/attention_operands.h"
#include "kernels/core/trace_log.h"
#include "kernels/matrix_product.h"

namespace dstrain {

/// Counts the bytes that an operation reads and writes. A tensor that it both reads and writes is
/// given twice.
template <typename... Tensors>
void note_moved(const Tensors&... tensors) {
  TraceSpan::add_work({.bytes = (tensors.bytes() + ...)});
}

inline std::int64_t flops_of(const ProductForm& form) {
  return 2 * form.m * form.n * form.k;
}

/// Counts a product, and gives the operation its sizes.
inline void note_product(const MatrixProduct& product) {
  const ProductForm form = form_of(product);
  const std::int64_t times = form.write == Write::kAdd ? 2 : 1;
  TraceSpan::add_work({.flops = flops_of(form),
                       .bytes = product.a.bytes() + product.b.bytes() + times * product.c.bytes()},
                      {form.m, form.n, form.k});
}

/// Counts `products` products for each pair of a query and a key that it sees. Where a sequence
/// has several documents, their borders are ignored.
inline void note_attention(const AttentionOperands& in, std::int64_t products, std::int64_t bytes) {
  if (!TraceSpan::is_recording()) return;
  std::int64_t pairs = 0;
  for (std::int64_t t = 0; t < in.shape.sequence; ++t) {
    const std::int64_t seen = first_position_of(in) + t + 1;
    const std::int64_t oldest =
        seen - keys_in_window(std::max<std::int64_t>(seen, 0), in.reach.window);
    pairs += std::clamp<std::int64_t>(seen, 0, keys_of(in)) -
             std::clamp<std::int64_t>(oldest, 0, keys_of(in));
  }
  const std::int64_t heads = in.shape.batch * in.shape.query_heads;
  TraceSpan::add_work({.flops = 2 * products * heads * pairs * in.shape.head_dim, .bytes = bytes},
                      {heads, in.shape.sequence, keys_of(in), in.shape.head_dim});
}

}  // namespace dstrain
