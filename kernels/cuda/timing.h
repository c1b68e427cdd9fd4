// Finds which of several ways to compute the same is the fastest on this GPU.
#pragma once

#include <functional>
#include <vector>

#include <cuda_runtime_api.h>

namespace dstrain {

/// The microseconds of the stream that each takes: the best of a few bursts, all taking turns, so
/// that a clock that changes meanwhile does not favour one. Each runs about ten times; what it
/// computes must not depend on how often. The stream has passed all of it on return.
std::vector<double> microseconds_of(const std::vector<std::function<void()>>& ways,
                                    cudaStream_t stream);

}  // namespace dstrain
