// Causal attention of training as graphs of cuDNN's operations, in the form in which it knows
// them ("scaled dot product attention") and runs each as one fused kernel, or a few.
//
// B batch, T sequence, H query heads, K key/value heads, D head dim
#pragma once

#include "kernels/cuda/cudnn_graph.h"
#include "kernels/ops.h"

namespace dstrain::sdpa {

/// The arguments that a plan is given when it runs. For memory, that is the address of its first
/// element.
enum Id : std::int64_t {
  kQ = 1,  ///< q, k, v: parts of packed rows q ‖ k ‖ v, [B·T][(H + 2K)·D]
  kK,
  kV,
  kOut,        ///< [B·T][H·D]
  kDOut,       ///< as out
  kLogsumexp,  ///< f32 [B][H][T], natural
  kDelta,      ///< f32 [B][H][T]; backward writes it
  kDQ,         ///< dq, dk, dv: parts of packed rows, as q, k, v
  kDK,
  kDV,
  kScale,  ///< the scalar 1 / √D
  kHidden  ///< the scalar -∞
};

/// Writes out and logsumexp.
void add_forward(CudnnGraph& graph, const AttentionShape& shape, DType dtype);

/// Writes dq, dk, dv and delta. dq is one product over all keys instead of a sum that blocks add
/// to in any order, for which cuDNN keeps dS: 2 · B · H · T² bytes of workspace on Hopper.
void add_backward(CudnnGraph& graph, const AttentionShape& shape, DType dtype);

}  // namespace dstrain::sdpa
