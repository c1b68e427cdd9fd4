// Causal attention over rows of T (float, BF16 or F16), forward, backward and over a cache.
#pragma once

#include <cstdint>

#include "kernels/core/bf16.h"
#include "kernels/core/f16.h"
#include "kernels/cuda/device/dropout.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/math/host_device.h"

namespace dstrain::cuda {

/// The place of queries, keys and values of one or more sequences, in elements.
template <typename T>
struct AttentionInputs {
  int batch;
  int queries;         ///< of a sequence
  int keys;            ///< of a sequence; query t sees those up to first_position + t
  int first_position;  ///< of the queries among the keys; negative where they come before
  int window;          ///< and of these the last so many
  int query_heads;
  int group;  ///< query heads that share a key/value head
  int head_dim;
  float scale;
  float cap;  ///< scores become cap · tanh(score / cap); 0: they stay
  /// [query_heads]: scores lose so much for each position that a key is before its query; nullptr:
  /// nothing.
  const float* slopes;
  /// [batch][queries]: tokens of its document before each query, which sees none before those;
  /// nullptr: a sequence is one document.
  const std::int32_t* document_positions;
  DropoutInputs dropout;  ///< of the probabilities: keys along, queries across, heads as planes
  int first_head;         ///< of these query heads among the planes
  int first_query;        ///< positions in the sample, where dropout counts from
  int first_key;
  const T* q;  ///< of sequence 0, position 0, head 0; heads lie side by side
  const T* k;
  const T* v;
  std::int64_t query_stride;  ///< from one position to the next
  std::int64_t key_stride;
  std::int64_t value_stride;
};

/// The first key that query t of sequence b sees through its window and within its document. Never
/// smaller than that of a query before it. For kernels.
template <typename T>
DSTRAIN_HD int first_key_seen_by(const AttentionInputs<T>& in, std::int64_t b, int t) {
  const int own = in.first_position + t;
  const int of_window = own < in.window ? 0 : own + 1 - in.window;
  if (in.document_positions == nullptr) {
    return of_window;
  }
  const int of_document = own - in.document_positions[b * in.queries + t];
  return of_document > of_window ? of_document : of_window;
}

constexpr int kWidestHead = 256;

/// out: [batch][queries][heads · head_dim]. logsumexp: [batch][heads][queries]; nullptr: not
/// wanted.
template <typename T>
void attention_forward(const Launch& to,
                       const AttentionInputs<T>& inputs,
                       T* out,
                       float* logsumexp);

template <typename T>
struct AttentionBackward {
  AttentionInputs<T> inputs;
  const T* out;
  const T* dout;
  const float* logsumexp;
  float* delta;  ///< [batch][heads][queries], scratch
  T* dq;
  T* dk;
  T* dv;
  std::int64_t dq_stride;
  std::int64_t dk_stride;
  std::int64_t dv_stride;
};
/// Computes delta = dout · out, with which attention_backward and flash_backward begin.
template <typename T>
void attention_delta(const Launch& to, const AttentionBackward<T>& backward);
template <typename T>
void attention_backward(const Launch& to, const AttentionBackward<T>& backward);

/// Merges partial results over other keys into out and logsumexp, which are as attention_forward
/// writes them.
template <typename T>
void merge_attention(const Launch& to,
                     int batch,
                     int queries,
                     int query_heads,
                     int head_dim,
                     const T* other_out,
                     const float* other_logsumexp,
                     T* out,
                     float* logsumexp);

/// Copies keys and values of new positions to their rows of a cache.
template <typename T>
void append_to_cache(const Launch& to,
                     const T* rows,
                     std::int64_t row_stride,
                     T* cache,
                     std::int64_t count,
                     std::int64_t width);

}  // namespace dstrain::cuda
