// Embedding tables: rows gathered, and gradients of rows added in token order. T: float, BF16 or
// F16.
#pragma once

#include <cstdint>

#include "kernels/core/bf16.h"
#include "kernels/core/f16.h"
#include "kernels/cuda/device/launch.h"

namespace dstrain::cuda {

/// Raises a fault where an id is outside [0, vocab_size); kernels that follow then do nothing.
void check_ids(const Launch& to,
               FaultSource source,
               const std::int32_t* ids,
               std::int64_t n,
               std::int64_t vocab_size);

template <typename T>
struct EmbeddingForward {
  const std::int32_t* ids;
  std::int64_t tokens;
  std::int64_t width;
  const T* table;
  std::int64_t first;  ///< the entry that row 0 of the table is
  std::int64_t table_rows;
  const T* positions;                ///< nullptr: none
  const std::int32_t* position_ids;  ///< rows of `positions`; nullptr: 0 … sequence - 1, in turn
  std::int64_t sequence;
  T* x;
};
template <typename T>
void embedding_forward(const Launch& to, const EmbeddingForward<T>& embedding);

template <typename T>
struct EmbeddingBackward {
  const std::int32_t* ids;
  std::int64_t tokens;
  std::int64_t width;
  const T* dx;
  std::int64_t first;
  std::int64_t table_rows;
  std::int64_t sequence;
  float* dtable;      ///< added to
  float* dpositions;  ///< added to; nullptr: not wanted
};
/// The number of keys of scratch that embedding_backward needs.
std::int64_t embedding_keys(std::int64_t tokens);
template <typename T>
void embedding_backward(const Launch& to,
                        const EmbeddingBackward<T>& embedding,
                        std::uint64_t* keys);
/// Sets to zero, unless a fault was raised.
void zero_unless_fault(const Launch& to, float* x, std::int64_t n);

}  // namespace dstrain::cuda
