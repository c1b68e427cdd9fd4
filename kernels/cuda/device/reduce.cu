// Two stages each: many blocks write a partial sum apiece, then the partial sums are added. Which
// element goes to which block and thread depends on sizes alone, not on addresses.
#include <algorithm>

#include "kernels/cuda/device/block_sum.cuh"
#include "kernels/cuda/device/floats.cuh"
#include "kernels/cuda/device/reduce.h"

namespace dstrain::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMostBlocks = 1024;

template <Of kOf>
__device__ double term(float x) {
  const auto wide = static_cast<double>(x);
  return kOf == Of::kSquares ? wide * wide : wide;
}

// One thread takes packs of eight, a grid apart. Floor: the bytes of x.
template <bool kAligned, Of kOf, typename T>
__global__ void sum_kernel(const T* x, std::int64_t n, double* partials) {
  const std::int64_t thread = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::int64_t stride = std::int64_t{gridDim.x} * kThreads * kPackWidth;
  double total = 0.0;
  for (std::int64_t i = thread * kPackWidth; i < n; i += stride) {
    if (kAligned && i + kPackWidth <= n) {
      float values[kPackWidth];
      load(x + i, values);
#pragma unroll
      for (int k = 0; k < kPackWidth; ++k) {
        total += term<kOf>(values[k]);
      }
    } else {
      for (int k = 0; k < kPackWidth && i + k < n; ++k) {
        total += term<kOf>(widen(x[i + k]));
      }
    }
  }
  const double of_block = block_sum(total);
  if (threadIdx.x == 0) {
    partials[blockIdx.x] = of_block;
  }
}

__device__ std::uint64_t bits_of(float x) {
  return __builtin_bit_cast(std::uint32_t, x);
}
template <typename Half>
__device__ std::uint64_t bits_of(Half x) {
  return x.bits;
}

template <typename As, typename From>
__device__ std::uint64_t bits_as(From x) {
  if constexpr (sizeof(As) == sizeof(From)) {
    return bits_of(x);
  } else {
    return bits_of(narrow<As>(x));
  }
}

// Works as sum_kernel does. partials[block]: Σ x and Σ i · x. Floor: the bytes of x.
template <bool kAligned, typename As, typename From>
__global__ void sum_bits_kernel(const From* x, std::int64_t n, std::uint64_t* partials) {
  const std::int64_t thread = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::int64_t stride = std::int64_t{gridDim.x} * kThreads * kPackWidth;
  std::uint64_t plain = 0;
  std::uint64_t weighted = 0;
  const auto add = [&](std::uint64_t bits, std::int64_t i) {
    plain += bits;
    weighted += static_cast<std::uint64_t>(i) * bits;
  };
  for (std::int64_t i = thread * kPackWidth; i < n; i += stride) {
    if (kAligned && i + kPackWidth <= n) {
      const auto pack = *reinterpret_cast<const Pack<From, kPackWidth>*>(x + i);
#pragma unroll
      for (int k = 0; k < kPackWidth; ++k) {
        add(bits_as<As>(pack.values[k]), i + k);
      }
    } else {
      for (int k = 0; k < kPackWidth && i + k < n; ++k) {
        add(bits_as<As>(x[i + k]), i + k);
      }
    }
  }
  const std::uint64_t plain_of_block = block_sum(plain);
  const std::uint64_t weighted_of_block = block_sum(weighted);
  if (threadIdx.x == 0) {
    partials[2 * blockIdx.x] = plain_of_block;
    partials[2 * blockIdx.x + 1] = weighted_of_block;
  }
}

/// One block for each total.
template <typename F>
__global__ void sum_partials_kernel(
    const F* partials, std::int64_t blocks, int count, F* totals, bool adds) {
  F total = 0;
  for (std::int64_t block = threadIdx.x; block < blocks; block += kThreads) {
    total += partials[block * count + blockIdx.x];
  }
  const F all = block_sum(total);
  if (threadIdx.x == 0) {
    totals[blockIdx.x] = adds ? totals[blockIdx.x] + all : all;
  }
}

constexpr int kColumnThreads = 32;

// A block sums 32 packs of columns over one chunk of rows: kRowThreads rows at a time, a thread a
// pack. Floor: the bytes of x.
template <int kWidth, int kRowThreads, typename T>
__global__ void column_sums_kernel(const T* x,
                                   std::int64_t rows,
                                   std::int64_t stride,
                                   std::int64_t width,
                                   std::int64_t chunk_rows,
                                   float* sums,
                                   bool adds) {
  __shared__ float of_threads[kRowThreads][kColumnThreads * kWidth];
  const std::int64_t column = (std::int64_t{blockIdx.x} * kColumnThreads + threadIdx.x) * kWidth;
  const std::int64_t begin = std::int64_t{blockIdx.y} * chunk_rows;
  const std::int64_t end = begin + chunk_rows < rows ? begin + chunk_rows : rows;
  float totals[kWidth] = {};
  if (column < width) {
#pragma unroll 4
    for (std::int64_t row = begin + threadIdx.y; row < end; row += kRowThreads) {
      float values[kWidth];
      load(x + row * stride + column, values);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        totals[k] += values[k];
      }
    }
  }
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    of_threads[threadIdx.y][threadIdx.x * kWidth + k] = totals[k];
  }
  __syncthreads();
  if (threadIdx.y != 0 || column >= width) {
    return;
  }
  float* const out = sums + std::int64_t{blockIdx.y} * width + column;
  for (int k = 0; k < kWidth; ++k) {
    float total = 0.0F;
    for (int thread = 0; thread < kRowThreads; ++thread) {
      total += of_threads[thread][threadIdx.x * kWidth + k];
    }
    out[k] = adds ? out[k] + total : total;
  }
}

template <int kRowThreads, typename T>
void launch_column_sums(const Launch& to,
                        const T* x,
                        std::int64_t rows,
                        std::int64_t stride,
                        std::int64_t width,
                        std::int64_t chunks,
                        float* sums,
                        bool adds) {
  const std::int64_t chunk_rows = (rows + chunks - 1) / chunks;
  const dim3 block(kColumnThreads, kRowThreads);
  const auto run = [&](auto* kernel, std::int64_t pack) {
    const std::int64_t columns = kColumnThreads * pack;
    const dim3 grid(static_cast<unsigned>((width + columns - 1) / columns),
                    static_cast<unsigned>(chunks));
    launch("column sums", kernel, grid, block, 0, to.stream, x, rows, stride, width, chunk_rows,
           sums, adds);
  };
  // One chunk has no blocks but those side by side: a column a thread makes eight times as many.
  if (chunks > 1 && width % kPackWidth == 0 && stride % kPackWidth == 0 && all_aligned(x)) {
    run(column_sums_kernel<kPackWidth, kRowThreads, T>, kPackWidth);
  } else {
    run(column_sums_kernel<1, kRowThreads, T>, 1);
  }
}

}  // namespace

std::int64_t sum_blocks(std::int64_t n) {
  constexpr std::int64_t kElements = std::int64_t{kThreads} * kPackWidth;
  return std::clamp<std::int64_t>((n + kElements - 1) / kElements, 1, kMostBlocks);
}

template <typename T>
void sum_elements(const Launch& to,
                  const T* x,
                  std::int64_t n,
                  Of of,
                  double* partials,
                  double* total,
                  bool adds) {
  const std::int64_t blocks = sum_blocks(n);
  const dim3 grid(static_cast<unsigned>(blocks));
  const auto run = [&](auto* kernel) {
    launch("sum", kernel, grid, dim3(kThreads), 0, to.stream, x, n, partials);
  };
  if (of == Of::kSquares) {
    run(all_aligned(x) ? sum_kernel<true, Of::kSquares, T> : sum_kernel<false, Of::kSquares, T>);
  } else {
    run(all_aligned(x) ? sum_kernel<true, Of::kValues, T> : sum_kernel<false, Of::kValues, T>);
  }
  sum_partials(to, partials, blocks, 1, total, adds);
}

void sum_partials(const Launch& to,
                  const double* partials,
                  std::int64_t blocks,
                  int count,
                  double* totals,
                  bool adds) {
  launch("sum of partial sums", sum_partials_kernel<double>, dim3(static_cast<unsigned>(count)),
         dim3(kThreads), 0, to.stream, partials, blocks, count, totals, adds);
}

template <typename From, typename As>
void sum_bits(const Launch& to,
              const From* x,
              std::int64_t n,
              std::uint64_t* partials,
              std::uint64_t* totals) {
  const std::int64_t blocks = sum_blocks(n);
  auto* const kernel =
      all_aligned(x) ? sum_bits_kernel<true, As, From> : sum_bits_kernel<false, As, From>;
  launch("sums of bits", kernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0, to.stream,
         x, n, partials);
  launch("sum of partial sums", sum_partials_kernel<std::uint64_t>, dim3(2), dim3(kThreads), 0,
         to.stream, partials, blocks, 2, totals, false);
}

std::int64_t column_chunks(std::int64_t rows) {
  constexpr std::int64_t kFewestRows = 64;
  constexpr std::int64_t kMostChunks = 128;
  return std::clamp<std::int64_t>((rows + kFewestRows - 1) / kFewestRows, 1, kMostChunks);
}

template <typename T>
void column_sums(const Launch& to,
                 const T* x,
                 std::int64_t rows,
                 std::int64_t width,
                 float* partials,
                 float* sums,
                 bool adds) {
  if (width == 0) {
    return;
  }
  const std::int64_t chunks = column_chunks(rows);
  constexpr int kRowThreads = 8;
  launch_column_sums<kRowThreads>(to, x, rows, width, width, chunks, partials, false);
  add_partial_rows(to, partials, chunks, width, width, sums, adds);
}

void add_partial_rows(const Launch& to,
                      const float* partials,
                      std::int64_t rows,
                      std::int64_t stride,
                      std::int64_t width,
                      float* sums,
                      bool adds) {
  if (width > 0) {
    constexpr int kRowThreads = 32;
    launch_column_sums<kRowThreads>(to, partials, rows, stride, width, 1, sums, adds);
  }
}

template void sum_elements(const Launch&, const float*, std::int64_t, Of, double*, double*, bool);
template void sum_elements(const Launch&, const BF16*, std::int64_t, Of, double*, double*, bool);
template void sum_elements(const Launch&, const F16*, std::int64_t, Of, double*, double*, bool);
template void sum_bits<float, float>(
    const Launch&, const float*, std::int64_t, std::uint64_t*, std::uint64_t*);
template void sum_bits<BF16, BF16>(
    const Launch&, const BF16*, std::int64_t, std::uint64_t*, std::uint64_t*);
template void sum_bits<F16, F16>(
    const Launch&, const F16*, std::int64_t, std::uint64_t*, std::uint64_t*);
template void sum_bits<float, BF16>(
    const Launch&, const float*, std::int64_t, std::uint64_t*, std::uint64_t*);
template void sum_bits<float, F16>(
    const Launch&, const float*, std::int64_t, std::uint64_t*, std::uint64_t*);
template void column_sums(
    const Launch&, const float*, std::int64_t, std::int64_t, float*, float*, bool);
template void column_sums(
    const Launch&, const BF16*, std::int64_t, std::int64_t, float*, float*, bool);
template void column_sums(
    const Launch&, const F16*, std::int64_t, std::int64_t, float*, float*, bool);

}  // namespace dstrain::cuda
