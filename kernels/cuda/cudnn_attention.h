// Attention of training through cuDNN, for one device: plans made once per shape and kept. This
// header names nothing of cuDNN, as dstrain is also built without its headers (no_cudnn.cpp).
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <string>

#include <cuda_runtime_api.h>

#include "kernels/core/dtype.h"
#include "kernels/ops.h"

namespace dstrain {

/// One pass over one shape.
struct AttentionPass {
  Pass pass;
  DType dtype;  ///< bf16 or f16
  AttentionShape shape;

  friend auto operator<=>(const AttentionPass&, const AttentionPass&) = default;
};

/// The tensors that a pass reads and writes, with the shapes of kernels/ops.h; all at multiples of
/// 16 bytes. Forward: qkv → out, logsumexp. Backward: qkv, out, logsumexp, dout → delta, dqkv.
/// They are const, as cuDNN takes what it writes in the same way as what it reads.
struct AttentionPointers {
  const void* qkv;
  const void* out;
  const void* logsumexp;
  const void* dout = nullptr;
  const void* delta = nullptr;
  const void* dqkv = nullptr;
};

class CudnnAttention {
 public:
  /// Opens the library. Throws CudaError, saying why there is none. `device`, CUDA's number, must
  /// be current here and in every call.
  explicit CudnnAttention(int device);
  CudnnAttention(const CudnnAttention&) = delete;
  CudnnAttention& operator=(const CudnnAttention&) = delete;
  ~CudnnAttention();

  /// "cuDNN 9.19.0".
  [[nodiscard]] std::string name() const;
  /// Empty where cuDNN has a plan whose sums are the same in every run and whose workspace is at
  /// most kMostCudnnWorkspace; otherwise the reason why it has none. Makes the plan when first
  /// asked, which takes about half a second.
  const std::string& why_not(const AttentionPass& pass);
  /// To be called only where why_not is empty.
  void run(const AttentionPass& pass, const AttentionPointers& pointers, cudaStream_t stream);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dstrain
