// A thread takes the eight neighbours whose signs are a byte, so that a warp's are 32 bytes of a
// message and 1 KiB of the values. Floor: the bytes of the values, and an eighth of a byte an
// element of each message.
#include <algorithm>

#include "kernels/cuda/device/first_of_pack.cuh"
#include "kernels/cuda/device/sign_code.h"

namespace dstrain::cuda {
namespace {

constexpr int kEight = 8;
constexpr int kThreads = 256;

/// Blocks [0, blocks) code message 0, the next ones message 1, and so on.
template <bool kAligned>
__global__ void encode_kernel(SignParts parts,
                              std::int64_t n,
                              unsigned blocks,
                              float* values,
                              const double* squares,
                              std::uint8_t* coded) {
  __shared__ float scale_of_all;
  const unsigned message = blockIdx.x / blocks;
  const unsigned block = blockIdx.x % blocks;
  std::uint8_t* const to = coded + message * parts.stride;
  if (threadIdx.x == 0) {
    scale_of_all = sign_scale(*squares, n);
    if (block == 0) {
      *reinterpret_cast<float*>(to + parts.scale) = scale_of_all;
    }
  }
  __syncthreads();
  const float scale = scale_of_all;
  float* const x = values + message * parts.chunk;
  const std::int64_t elements = parts.elements_of(message, n);
  const std::int64_t bytes = parts.sign_bytes();
  const std::int64_t stride = std::int64_t{blocks} * kThreads;
  for (std::int64_t byte = std::int64_t{block} * kThreads + threadIdx.x; byte < bytes;
       byte += stride) {
    const std::int64_t left = elements - byte * kEight;
    unsigned signs = 0;
    if (left > 0) {
      float eight[kEight];
      load_first<kAligned>(x + byte * kEight, left, eight);
      signs = pack_signs(eight);
      signs &= left < kEight ? 0xff00U >> left : 0xffU;
#pragma unroll
      for (int k = 0; k < kEight; ++k) {
        eight[k] -= one_bit_value(one_bit_sign(eight[k]), scale);
      }
      store_first<kAligned>(x + byte * kEight, left, eight);
    }
    to[parts.signs + byte] = static_cast<std::uint8_t>(signs);
  }
}

template <bool kAligned>
__global__ void decode_kernel(
    SignParts parts, std::int64_t n, unsigned blocks, const std::uint8_t* coded, float* values) {
  const unsigned message = blockIdx.x / blocks;
  const unsigned block = blockIdx.x % blocks;
  const std::uint8_t* const from = coded + message * parts.stride;
  const float scale = *reinterpret_cast<const float*>(from + parts.scale);
  float* const y = values + message * parts.chunk;
  const std::int64_t elements = parts.elements_of(message, n);
  const std::int64_t stride = std::int64_t{blocks} * kThreads;
  for (std::int64_t byte = std::int64_t{block} * kThreads + threadIdx.x; byte * kEight < elements;
       byte += stride) {
    const std::uint8_t signs = from[parts.signs + byte];
    float eight[kEight];
#pragma unroll
    for (int k = 0; k < kEight; ++k) {
      eight[k] = one_bit_value(packed_sign(signs, k), scale);
    }
    store_first<kAligned>(y + byte * kEight, elements - byte * kEight, eight);
  }
}

/// Full packs and rests go through the same operations, so that an element has the same bits
/// wherever a tensor begins.
template <bool kAligned>
__global__ void sum_kernel(SignParts parts,
                           std::int64_t n,
                           const std::uint8_t* coded,
                           float factor,
                           float* values,
                           bool adds) {
  const std::int64_t stride = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t byte = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; byte * kEight < n;
       byte += stride) {
    float sums[kEight] = {};
#pragma unroll 4
    for (std::int64_t message = 0; message < parts.count; ++message) {
      const std::uint8_t* const from = coded + message * parts.stride;
      const float scale = *reinterpret_cast<const float*>(from + parts.scale);
      const std::uint8_t signs = from[parts.signs + byte];
#pragma unroll
      for (int k = 0; k < kEight; ++k) {
        sums[k] += one_bit_value(packed_sign(signs, k), scale);
      }
    }
    const std::int64_t left = n - byte * kEight;
    float* const y = values + byte * kEight;
    float before[kEight] = {};
    if (adds) {
      load_first<kAligned>(y, left, before);
    }
#pragma unroll
    for (int k = 0; k < kEight; ++k) {
      const float sum = factor * sums[k];
      before[k] = adds ? before[k] + sum : sum;
    }
    store_first<kAligned>(y, left, before);
  }
}

/// Blocks that go over `bytes` bytes of signs in each of `count` messages.
unsigned blocks_for(const Launch& to, std::int64_t bytes, std::int64_t count) {
  constexpr std::int64_t kBlocksPerMultiprocessor = 16;
  const std::int64_t most =
      std::max<std::int64_t>(1, to.multiprocessors * kBlocksPerMultiprocessor / count);
  return static_cast<unsigned>(
      std::clamp<std::int64_t>((bytes + kThreads - 1) / kThreads, 1, most));
}

dim3 grid_of(const SignParts& parts, unsigned blocks) {
  return dim3(static_cast<unsigned>(parts.count) * blocks);
}

}  // namespace

void encode_signs(const Launch& to,
                  const SignParts& parts,
                  std::int64_t n,
                  float* values,
                  const double* squares,
                  std::uint8_t* coded) {
  const unsigned blocks = blocks_for(to, parts.sign_bytes(), parts.count);
  launch("encode_signs", all_aligned(values) ? encode_kernel<true> : encode_kernel<false>,
         grid_of(parts, blocks), dim3(kThreads), 0, to.stream, parts, n, blocks, values, squares,
         coded);
}

void sum_signs(const Launch& to,
               const SignParts& parts,
               std::int64_t n,
               const std::uint8_t* coded,
               float factor,
               float* values,
               bool adds) {
  if (n == 0) {
    return;
  }
  launch("sum_signs", all_aligned(values) ? sum_kernel<true> : sum_kernel<false>,
         dim3(blocks_for(to, (n + 7) / 8, 1)), dim3(kThreads), 0, to.stream, parts, n, coded,
         factor, values, adds);
}

void decode_signs(const Launch& to,
                  const SignParts& parts,
                  std::int64_t n,
                  const std::uint8_t* coded,
                  float* values) {
  if (n == 0) {
    return;
  }
  const unsigned blocks = blocks_for(to, parts.sign_bytes(), parts.count);
  launch("decode_signs", all_aligned(values) ? decode_kernel<true> : decode_kernel<false>,
         grid_of(parts, blocks), dim3(kThreads), 0, to.stream, parts, n, blocks, coded, values);
}

}  // namespace dstrain::cuda
