// The operands of attention. Queries, keys and values are views with strides of their own, so that
// they may lie packed in rows q‖k‖v, in a cache, or in what another rank sent.
//
// B sequences of T queries and S keys, H query heads, K key/value heads, D head dim
#pragma once

#include "kernels/dropout.h"
#include "kernels/ops.h"

namespace dstrain {

/// The keys that a query sees, by their positions, and what its scores become before the softmax.
struct AttentionReach {
  std::int64_t first_query = 0;  ///< position of the first query of each sequence
  std::int64_t first_key = 0;    ///< position of the first key of each sequence
  std::int64_t window = 0;       ///< positions that a query sees, its own the last; 0: all up to it
  float scale = 0.0F;            ///< what q · k is multiplied with; 0: 1/sqrt(D)
  float cap = 0.0F;  ///< scores become cap · tanh(score / cap) (Gemma 2, 2024, §2); 0: they stay
  /// i32 [B·T]: the number of tokens of its document before each query, in a sequence of several
  /// documents, none of which sees another: 0, or one more than for the query before. Empty: a
  /// sequence is one document.
  ConstTensor document_positions{};
  /// f32 [H]: scores lose so much for each position that a key is before its query (ALiBi, Press et
  /// al. 2022). Not together with a cap. Empty: they lose nothing.
  ConstTensor slopes_H{};
};

/// Dropout of the probabilities, which are not made to sum to one again: positions of keys along,
/// of queries across, query heads as planes (kernels/math/dropout.h).
struct AttentionDropout : Dropout {
  std::int64_t first_head = 0;  ///< of these heads among the model's
};

struct AttentionOperands {
  AttentionShape shape;  ///< its sequence: T
  AttentionReach reach{};
  AttentionDropout dropout{};  ///< by the positions of queries and keys, which are not negative
  ConstColumns q;              ///< [B·T, H·D]
  ConstColumns k;              ///< [B·S, K·D]
  ConstColumns v;              ///< [B·S, K·D]
};

struct AttentionForward {
  AttentionOperands in;
  Tensor out;            ///< [B·T, H·D]; zeros where a query sees no key
  Tensor logsumexp_BHT;  ///< f32, of the scores; -infinity where a query sees no key
};

/// The gradient of AttentionForward. Where out is merged from several parts of the keys
/// (merge_attention), each part's backward is given the merged out and logsumexp: its dk and dv are
/// then whole, and the parts' dq are to be added.
struct AttentionBackward {
  AttentionOperands in;
  ConstTensor out;
  ConstTensor logsumexp_BHT;
  ConstTensor dout;
  Tensor delta_BHT;  ///< f32, scratch
  Columns dq;        ///< overwritten, as dk and dv
  Columns dk;
  Columns dv;
};

/// The columns of q, k and v in rows q‖k‖v, each head-major; dq, dk and dv likewise.
template <typename Matrix>
struct PackedColumns {
  BasicColumns<Matrix> q;
  BasicColumns<Matrix> k;
  BasicColumns<Matrix> v;

  PackedColumns(const AttentionShape& shape, const Matrix& qkv)
      : q(qkv, 0, shape.query_heads * shape.head_dim),
        k(qkv, q.width(), shape.key_value_heads * shape.head_dim),
        v(qkv, q.width() + k.width(), k.width()) {}
};

/// Queries, keys and values of the same positions, packed.
inline AttentionOperands packed_attention(const AttentionShape& shape,
                                          const ConstTensor& qkv,
                                          const AttentionReach& reach = {},
                                          const AttentionDropout& dropout = {}) {
  const PackedColumns<ConstTensor> columns(shape, qkv);
  return {.shape = shape,
          .reach = reach,
          .dropout = dropout,
          .q = columns.q,
          .k = columns.k,
          .v = columns.v};
}
inline AttentionBackward packed_attention_backward(const AttentionShape& shape,
                                                   const ConstTensor& qkv,
                                                   const ConstTensor& out,
                                                   const ConstTensor& logsumexp_BHT,
                                                   const ConstTensor& dout,
                                                   const Tensor& delta_BHT,
                                                   const Tensor& dqkv,
                                                   const AttentionReach& reach = {},
                                                   const AttentionDropout& dropout = {}) {
  const PackedColumns<Tensor> gradients(shape, dqkv);
  return {.in = packed_attention(shape, qkv, reach, dropout),
          .out = out,
          .logsumexp_BHT = logsumexp_BHT,
          .dout = dout,
          .delta_BHT = delta_BHT,
          .dq = gradients.q,
          .dk = gradients.k,
          .dv = gradients.v};
}

}  // namespace dstrain
