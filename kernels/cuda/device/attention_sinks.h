// Scores that belong to no key and join the softmax over all of them (kernels/ops_list.inc,
// add_sinks). S: float, BF16 or F16; T: S or float.
#pragma once

#include <cstdint>

#include "kernels/core/bf16.h"
#include "kernels/core/f16.h"
#include "kernels/cuda/device/launch.h"

namespace dstrain::cuda {

template <typename S>
struct AttentionSinks {
  std::int64_t tokens;
  std::int64_t sequence;
  int heads;
  int head_dim;
  const S* sinks;  ///< [heads]
};

/// out: [tokens][heads][head_dim]; logsumexp: [sequences][heads][sequence].
template <typename S, typename T>
void add_sinks(const Launch& to, const AttentionSinks<S>& sinks, T* out, float* logsumexp);

/// The tokens are added up in so many parts, which do not depend on the device.
constexpr std::int64_t kSinkTokens = 256;
constexpr std::int64_t sink_parts(std::int64_t tokens) {
  return (tokens + kSinkTokens - 1) / kSinkTokens;
}
/// sums: scratch [heads][sink_parts(tokens)].
template <typename S, typename T>
void sinks_backward(const Launch& to,
                    const AttentionSinks<S>& sinks,
                    const T* out,
                    const T* dout,
                    const float* logsumexp,
                    float* sums,
                    float* d_sinks,
                    bool adds);

}  // namespace dstrain::cuda
