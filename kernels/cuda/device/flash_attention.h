// Attention of training on tensor cores, in bf16 and f16. The same operands as attention.h's.
#pragma once

#include "kernels/cuda/device/attention.h"

namespace dstrain::cuda {

/// Whether the kernels below take these operands: heads of up to 128 columns in multiples of 8,
/// everything at multiples of 16 bytes, no cap, no slopes, and k and v with one stride; keys are as
/// many as queries and have their positions, or every query sees them all, in multiples of 64. The
/// backward wants strides of even numbers.
template <typename T>
bool flash_takes(const AttentionInputs<T>& inputs, const void* out);

template <typename T>
void flash_forward(const Launch& to, const AttentionInputs<T>& inputs, T* out, float* logsumexp);

/// Needs delta to be filled (attention_delta).
template <typename T>
void flash_backward(const Launch& to, const AttentionBackward<T>& backward);

}  // namespace dstrain::cuda
