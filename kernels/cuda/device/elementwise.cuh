// launch_elementwise: a body applied to all elements of flat ranges.
//
// One thread takes packs of kPackWidth neighbours, a grid apart; the elements after the last whole
// pack, or all of them where an operand begins between two packs, are taken one by one. Floor: the
// bytes of all operands over the memory's bandwidth.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/device/floats.cuh"
#include "kernels/cuda/device/launch.h"

namespace dstrain {

/// body.at<kWidth>(i) does elements [i, i + kWidth).
template <int kWidth, typename Body>
__global__ void elementwise_kernel(std::int64_t n, Body body) {
  const std::int64_t thread = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const std::int64_t threads = std::int64_t{gridDim.x} * blockDim.x;
  const std::int64_t packs = n / kWidth;
  for (std::int64_t pack = thread; pack < packs; pack += threads) {
    body.template at<kWidth>(pack * kWidth);
  }
  const std::int64_t rest = packs * kWidth + thread;
  if (rest < n) {
    body.template at<1>(rest);
  }
}

template <typename Body>
void launch_elementwise(
    const char* name, const Launch& to, std::int64_t n, bool aligned, const Body& body) {
  if (n == 0) {
    return;
  }
  constexpr int kThreads = 256;
  constexpr std::int64_t kBlocksPerMultiprocessor = 16;
  const std::int64_t width = aligned ? kPackWidth : 1;
  const std::int64_t wanted = (n + width * kThreads - 1) / (width * kThreads);
  const std::int64_t blocks =
      std::min<std::int64_t>(wanted, to.multiprocessors * kBlocksPerMultiprocessor);
  const dim3 grid(static_cast<unsigned>(blocks));
  if (aligned) {
    launch(name, elementwise_kernel<kPackWidth, Body>, grid, dim3(kThreads), 0, to.stream, n, body);
  } else {
    launch(name, elementwise_kernel<1, Body>, grid, dim3(kThreads), 0, to.stream, n, body);
  }
}

/// The number of threads of a block that goes over one row of `width` in packs: whole warps, no
/// more than the row has work for.
inline unsigned threads_for_row(std::int64_t width, int pack, unsigned most) {
  const std::int64_t wanted = (width + pack - 1) / pack;
  return static_cast<unsigned>(std::min<std::int64_t>(most, (wanted + 31) / 32 * 32));
}

}  // namespace dstrain
