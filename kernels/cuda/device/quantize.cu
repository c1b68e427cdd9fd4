// Reads each element once and writes what is wanted of it: its 8 bits, the same transposed, and the
// largest magnitude. Floor: the bytes of x and of both outputs.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include <cuda_fp8.h>

#include "kernels/cuda/device/block_sum.cuh"
#include "kernels/cuda/device/floats.cuh"
#include "kernels/cuda/device/quantize.h"

namespace dstrain::cuda {
namespace {

constexpr std::uint32_t kMagnitude = 0x7fffffffU;
constexpr std::uint32_t kInfinity = 0x7f800000U;

struct LargerBits {
  __device__ std::uint32_t operator()(std::uint32_t a, std::uint32_t b) const {
    return a > b ? a : b;
  }
};

/// Positive floats are ordered as their bits are, with NaN after infinity. A block first compares
/// its own value: after the first few, hardly any has a larger one.
__device__ void keep_largest(std::uint32_t of_thread, float* amax) {
  const std::uint32_t largest = block_reduce(of_thread, 0U, LargerBits{});
  auto* const bits = reinterpret_cast<std::uint32_t*>(amax);
  if (threadIdx.x == 0 && largest > *static_cast<volatile std::uint32_t*>(bits)) {
    atomicMax(bits, largest);
  }
}

/// Does what f8_bits() of kernels/core/f8.h does, two at a time: the first in the low byte. One
/// instruction from sm_89 on.
template <typename F8>
__device__ std::uint32_t pair_of(float first, float second) {
  constexpr auto kFormat = std::is_same_v<F8, F8E4M3> ? __NV_E4M3 : __NV_E5M2;
  return __nv_cvt_float2_to_fp8x2(float2{first, second}, __NV_SATFINITE, kFormat);
}

/// The value to convert for x, and x's part in the largest: infinity becomes NaN.
__device__ float scaled(float x, float factor, std::uint32_t& largest) {
  const std::uint32_t magnitude = __builtin_bit_cast(std::uint32_t, x) & kMagnitude;
  largest = magnitude > largest ? magnitude : largest;
  return magnitude < kInfinity ? x * factor : __builtin_bit_cast(float, kMagnitude);
}

constexpr int kThreads = 256;
constexpr int kElements = 16;  // of a thread at a time

template <typename F8>
struct alignas(16) Codes {
  std::uint32_t words[kElements / 4];
};

// One thread takes 16 neighbours, a grid apart, and the elements after the last whole 16 one by
// one.
template <typename T, typename F8>
__global__ void quantize_kernel(Quantize<T, F8> work) {
  const std::int64_t n = work.rows * work.columns;
  const std::int64_t thread = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::int64_t threads = std::int64_t{gridDim.x} * kThreads;
  const float factor = work.q == nullptr ? 1.0F : 1.0F / *work.scale;
  const std::int64_t packs = n / kElements;
  std::uint32_t largest = 0;
  for (std::int64_t pack = thread; pack < packs; pack += threads) {
    float values[kElements];
    load(work.x + pack * kElements, values);
    Codes<F8> codes;
#pragma unroll
    for (int word = 0; word < kElements / 4; ++word) {
      float four[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        four[k] = scaled(values[word * 4 + k], factor, largest);
      }
      codes.words[word] = pair_of<F8>(four[0], four[1]) | (pair_of<F8>(four[2], four[3]) << 16);
    }
    if (work.q != nullptr) {
      *reinterpret_cast<Codes<F8>*>(work.q + pack * kElements) = codes;
    }
  }
  const std::int64_t rest = packs * kElements + thread;
  if (rest < n) {
    const float value = scaled(widen(work.x[rest]), factor, largest);
    if (work.q != nullptr) {
      work.q[rest] = F8{static_cast<std::uint8_t>(pair_of<F8>(value, 0.0F) & 0xffU)};
    }
  }
  keep_largest(largest, work.amax);
}

constexpr int kTile = 64;
constexpr int kTileThreads = 128;
constexpr int kPack = 8;                          // columns that a thread reads at a time
constexpr int kTileWords = kTile / 4 + 1;         // of one column in shared memory
constexpr int kRowGroups = kTileThreads / kPack;  // of four rows each
static_assert(kRowGroups * 4 == kTile && kPack * kPack == kTile);

// A block transposes a tile of 64 × 64. A thread reads four rows of eight columns, so that it has
// whole words of four rows for the transposed tile in shared memory; a word more a column keeps
// both the writes and the reads of it to two accesses of a bank. Rows and columns are multiples of
// 16, so what a thread moves at a time is all inside or all outside.
template <typename T, typename F8>
__global__ void transpose_kernel(Quantize<T, F8> work) {
  __shared__ std::uint32_t columns_of_words[kTile][kTileWords];
  const std::int64_t first_row = std::int64_t{blockIdx.x} * kTile;
  const std::int64_t first_column = std::int64_t{blockIdx.y} * kTile;
  const float factor = 1.0F / *work.scale;
  std::uint32_t largest = 0;
  {
    const int pack = static_cast<int>(threadIdx.x) % kPack;
    const int group = static_cast<int>(threadIdx.x) / kPack;
    const std::int64_t column = first_column + pack * kPack;
    const std::int64_t row = first_row + group * 4;
    if (row < work.rows && column < work.columns) {
      float values[4][kPack];
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        load(work.x + (row + r) * work.columns + column, values[r]);
      }
#pragma unroll
      for (int r = 0; r < 4; ++r) {
#pragma unroll
        for (int k = 0; k < kPack; ++k) {
          values[r][k] = scaled(values[r][k], factor, largest);
        }
      }
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        columns_of_words[pack * kPack + k][group] = pair_of<F8>(values[0][k], values[1][k]) |
                                                    (pair_of<F8>(values[2][k], values[3][k]) << 16);
      }
      if (work.q != nullptr) {
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          Pack<std::uint32_t, 2> words;
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const float* const four = values[r] + half * 4;
            words.values[half] =
                pair_of<F8>(four[0], four[1]) | (pair_of<F8>(four[2], four[3]) << 16);
          }
          *reinterpret_cast<Pack<std::uint32_t, 2>*>(work.q + (row + r) * work.columns + column) =
              words;
        }
      }
    }
  }
  __syncthreads();
  // Four neighbouring threads write a column's 64 rows.
  for (int piece = static_cast<int>(threadIdx.x); piece < kTile * 4; piece += kTileThreads) {
    const int column = piece / 4;
    const int quarter = piece % 4;
    const std::int64_t to_row = first_column + column;
    const std::int64_t to_column = first_row + quarter * kElements;
    if (to_row < work.columns && to_column < work.rows) {
      Codes<F8> codes;
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        codes.words[word] = columns_of_words[column][quarter * 4 + word];
      }
      *reinterpret_cast<Codes<F8>*>(work.transposed + to_row * work.rows + to_column) = codes;
    }
  }
  keep_largest(largest, work.amax);
}

}  // namespace

template <typename T, typename F8>
void quantize(const Launch& to, const Quantize<T, F8>& work) {
  const std::int64_t n = work.rows * work.columns;
  if (n == 0) {
    return;
  }
  if (work.transposed != nullptr) {
    const auto tiles = [](std::int64_t length) {
      return static_cast<unsigned>((length + kTile - 1) / kTile);
    };
    launch("quantize and transpose", transpose_kernel<T, F8>,
           dim3(tiles(work.rows), tiles(work.columns)), dim3(kTileThreads), 0, to.stream, work);
    return;
  }
  constexpr std::int64_t kBlocksPerMultiprocessor = 16;
  const std::int64_t wanted = (n + kThreads * kElements - 1) / (kThreads * kElements);
  const std::int64_t blocks =
      std::min<std::int64_t>(wanted, to.multiprocessors * kBlocksPerMultiprocessor);
  launch("quantize", quantize_kernel<T, F8>, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0,
         to.stream, work);
}

template void quantize(const Launch&, const Quantize<float, F8E4M3>&);
template void quantize(const Launch&, const Quantize<float, F8E5M2>&);
template void quantize(const Launch&, const Quantize<BF16, F8E4M3>&);
template void quantize(const Launch&, const Quantize<BF16, F8E5M2>&);
template void quantize(const Launch&, const Quantize<F16, F8E4M3>&);
template void quantize(const Launch&, const Quantize<F16, F8E5M2>&);

}  // namespace dstrain::cuda
