// The compositions that cuDNN documents for its fused attention engines (cuDNN developer guide,
// "Fused Flash Attention fprop" and "bprop"), whose order of operations its pattern matching wants.
#include "kernels/cuda/cudnn_sdpa.h"

#include "kernels/attention_operands.h"

namespace dstrain::sdpa {
namespace {

using Tensor = CudnnGraph::Tensor;
using Dims = CudnnGraph::Dims;

/// The tensors' dims and strides, most of which recur.
struct Form {
  AttentionShape s;
  DType dtype;

  [[nodiscard]] Dims scores() const { return {s.batch, s.query_heads, s.sequence, s.sequence}; }
  [[nodiscard]] Dims rows() const { return {s.batch, s.query_heads, s.sequence, 1}; }
  [[nodiscard]] Dims heads(std::int64_t count) const {
    return {s.batch, count, s.sequence, s.head_dim};
  }
  [[nodiscard]] Dims strides(std::int64_t width) const {
    return {s.sequence * width, s.head_dim, width, 1};
  }
  [[nodiscard]] cudnnDataType_t type() const {
    return dtype == DType::kBF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF;
  }
};

Dims transposed(const Dims& dims) {
  return {dims[0], dims[1], dims[3], dims[2]};
}

/// A part of packed rows, [B, heads, T, D].
Tensor packed(CudnnGraph& graph, const Form& form, Id id, std::int64_t heads) {
  return graph.memory(id, form.dtype, form.heads(heads), form.strides(qkv_width(form.s)));
}

/// The same, seen as [B, heads, D, T].
Tensor packed_transposed(CudnnGraph& graph, const Form& form, Id id, std::int64_t heads) {
  return graph.memory(id, form.dtype, transposed(form.heads(heads)),
                      transposed(form.strides(qkv_width(form.s))));
}

Tensor output_rows(CudnnGraph& graph, const Form& form, Id id) {
  return graph.memory(id, form.dtype, form.heads(form.s.query_heads),
                      form.strides(form.s.query_heads * form.s.head_dim));
}

Tensor sums(CudnnGraph& graph, const Form& form, Id id) {
  const AttentionShape& s = form.s;
  return graph.memory(id, DType::kF32, form.rows(), {s.query_heads * s.sequence, s.sequence, 1, 1});
}

/// f32 values in the kernel's registers.
Tensor computed(CudnnGraph& graph, const Dims& dims) {
  return graph.intermediate(CUDNN_DATA_FLOAT, dims);
}

Tensor apply(CudnnGraph& graph, cudnnPointwiseMode_t mode, Tensor x, Tensor b, const Dims& dims) {
  const Tensor y = computed(graph, dims);
  graph.pointwise(mode, x, b, y);
  return y;
}

Tensor apply(CudnnGraph& graph, cudnnPointwiseMode_t mode, Tensor x, const Dims& dims) {
  const Tensor y = computed(graph, dims);
  graph.pointwise(mode, x, y);
  return y;
}

/// Sets scores of keys after the query to -∞.
Tensor hide_later_keys(CudnnGraph& graph, const Form& form, Tensor scores) {
  const Tensor query = graph.intermediate(CUDNN_DATA_INT32, form.scores());
  const Tensor key = graph.intermediate(CUDNN_DATA_INT32, form.scores());
  const Tensor seen = graph.intermediate(CUDNN_DATA_BOOLEAN, form.scores());
  const Tensor masked = computed(graph, form.scores());
  graph.index(scores, 2, query);
  graph.index(scores, 3, key);
  graph.at_least(query, key, seen);
  graph.select(scores, graph.scalar(kHidden), seen, masked);
  return masked;
}

/// out = x as the dtype and the transposed [T keys, T queries] that the next product takes.
Tensor turned(CudnnGraph& graph, const Form& form, Tensor x) {
  const Dims dims = form.scores();
  const Tensor y = graph.intermediate(form.type(), transposed(dims),
                                      {dims[1] * dims[2] * dims[3], dims[2] * dims[3], 1, dims[3]});
  graph.reshape(x, y);
  return y;
}

}  // namespace

void add_forward(CudnnGraph& graph, const AttentionShape& shape, DType dtype) {
  const Form form{shape, dtype};
  const Tensor q = packed(graph, form, kQ, shape.query_heads);
  const Tensor k = packed_transposed(graph, form, kK, shape.key_value_heads);
  const Tensor v = packed(graph, form, kV, shape.key_value_heads);

  const Tensor products = computed(graph, form.scores());
  graph.matmul(q, k, products);
  const Tensor scaled =
      apply(graph, CUDNN_POINTWISE_MUL, products, graph.scalar(kScale), form.scores());
  const Tensor scores = hide_later_keys(graph, form, scaled);

  const Tensor largest = computed(graph, form.rows());
  graph.reduce(CUDNN_REDUCE_TENSOR_MAX, scores, largest);
  const Tensor below = apply(graph, CUDNN_POINTWISE_SUB, scores, largest, form.scores());
  const Tensor weights = apply(graph, CUDNN_POINTWISE_EXP, below, form.scores());
  const Tensor total = computed(graph, form.rows());
  graph.reduce(CUDNN_REDUCE_TENSOR_ADD, weights, total);
  const Tensor log_total = apply(graph, CUDNN_POINTWISE_LOG, total, form.rows());
  graph.pointwise(CUDNN_POINTWISE_ADD, largest, log_total, sums(graph, form, kLogsumexp));
  const Tensor probabilities = graph.intermediate(form.type(), form.scores());
  graph.pointwise(CUDNN_POINTWISE_DIV, weights, total, probabilities);

  graph.matmul(probabilities, v, output_rows(graph, form, kOut));
}

void add_backward(CudnnGraph& graph, const AttentionShape& shape, DType dtype) {
  const Form form{shape, dtype};
  const Tensor q = packed(graph, form, kQ, shape.query_heads);
  const Tensor k = packed_transposed(graph, form, kK, shape.key_value_heads);
  const Tensor v = packed_transposed(graph, form, kV, shape.key_value_heads);
  const Tensor dout = output_rows(graph, form, kDOut);
  const Tensor scale = graph.scalar(kScale);

  // delta = Σ dout · out over a head's columns.
  const Tensor terms = apply(graph, CUDNN_POINTWISE_MUL, dout, output_rows(graph, form, kOut),
                             form.heads(shape.query_heads));
  const Tensor delta = sums(graph, form, kDelta);
  graph.reduce(CUDNN_REDUCE_TENSOR_ADD, terms, delta);

  // p = exp(scale · q kᵀ - logsumexp); dv = pᵀ dout.
  const Tensor products = computed(graph, form.scores());
  graph.matmul(q, k, products);
  const Tensor scaled = apply(graph, CUDNN_POINTWISE_MUL, products, scale, form.scores());
  const Tensor below =
      apply(graph, CUDNN_POINTWISE_SUB, scaled, sums(graph, form, kLogsumexp), form.scores());
  const Tensor p =
      apply(graph, CUDNN_POINTWISE_EXP, hide_later_keys(graph, form, below), form.scores());
  graph.matmul(turned(graph, form, p), dout, packed(graph, form, kDV, shape.key_value_heads));

  // ds = scale · p · (dout vᵀ - delta); dk = dsᵀ q; dq = ds k.
  const Tensor dp = computed(graph, form.scores());
  graph.matmul(dout, v, dp);
  const Tensor less = apply(graph, CUDNN_POINTWISE_SUB, dp, delta, form.scores());
  const Tensor weighted = apply(graph, CUDNN_POINTWISE_MUL, less, p, form.scores());
  const Tensor ds = apply(graph, CUDNN_POINTWISE_MUL, weighted, scale, form.scores());
  graph.matmul(turned(graph, form, ds), q, packed(graph, form, kDK, shape.key_value_heads));
  const Tensor k_rows = graph.intermediate(form.type(), form.heads(shape.key_value_heads),
                                           form.strides(qkv_width(shape)));
  graph.reshape(k, k_rows);
  graph.matmul(ds, k_rows, packed(graph, form, kDQ, shape.query_heads));
}

}  // namespace dstrain::sdpa
