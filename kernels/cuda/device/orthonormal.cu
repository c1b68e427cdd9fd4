// Three kernels a round: blocks of rows sum up the products of each two columns, a single block
// makes factors of them, and blocks of rows make the new columns. Floor: the bytes of the columns,
// twice read and once written a round.
//
// N rows, R columns, B blocks of rows
#include <algorithm>

#include "kernels/cuda/device/language.cuh"
#include "kernels/cuda/device/orthonormal.h"

namespace dstrain::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMostRowBlocks = 128;

// A thread takes a pair of columns; where there are few pairs, several threads share the rows of
// each, and one adds up what they found.
__global__ void products_kernel(const float* p_NR,
                                std::int64_t rows,
                                int columns,
                                std::int64_t block_rows,
                                double* products_BRR) {
  __shared__ double of_threads[kThreads];
  const std::int64_t begin = blockIdx.x * block_rows;
  const std::int64_t end = begin + block_rows < rows ? begin + block_rows : rows;
  const int pairs = columns * columns;
  const int sharing = pairs < kThreads ? kThreads / pairs : 1;
  const int thread = static_cast<int>(threadIdx.x);
  for (int first = 0; first < pairs; first += kThreads) {
    const int pair = sharing > 1 ? thread % pairs : first + thread;
    const int share = sharing > 1 ? thread / pairs : 0;
    const int i = pair / columns;
    const int j = pair % columns;
    double total = 0.0;
    if (pair < pairs && share < sharing && i <= j) {
      for (std::int64_t row = begin + share; row < end; row += sharing) {
        const float* const p = p_NR + row * columns;
        total += static_cast<double>(p[i]) * static_cast<double>(p[j]);
      }
    }
    of_threads[thread] = total;
    __syncthreads();
    if (pair < pairs && share == 0) {
      for (int other = 1; other < sharing; ++other) {
        total += of_threads[other * pairs + thread];
      }
      products_BRR[blockIdx.x * std::int64_t{pairs} + pair] = total;
    }
    __syncthreads();
  }
}

__global__ void factors_kernel(OrthonormalRound round,
                               int columns,
                               std::int64_t blocks,
                               double epsilon,
                               const double* products_BRR,
                               double* factors_RR,
                               double* scales_R) {
  __shared__ double first_squares[kMostOrthonormalColumns];
  __shared__ double scales[kMostOrthonormalColumns];
  const int pairs = columns * columns;
  const int thread = static_cast<int>(threadIdx.x);
  auto* const products = dynamic_shared<double>();
  double* const factors = products + pairs;
  for (int pair = thread; pair < pairs; pair += kThreads) {
    double total = 0.0;
    for (std::int64_t block = 0; block < blocks; ++block) {
      total += products_BRR[block * pairs + pair];
    }
    const bool diagonal = pair / columns == pair % columns;
    products[pair] = total;
    factors[pair] = diagonal ? 1.0 : 0.0;
    if (diagonal) {
      first_squares[pair % columns] = total;
    }
  }
  for (int i = 0; i < columns; ++i) {
    __syncthreads();
    const double first_scale = round == OrthonormalRound::kRepeat ? scales_R[i] : 1.0;
    const ColumnStep step =
        column_step(round, products[i * columns + i], first_squares[i], first_scale, epsilon);
    if (thread == 0) {
      scales[i] = step.scale;
    }
    for (int pair = thread; pair < pairs; pair += kThreads) {
      const int row = pair / columns;
      const int j = pair % columns;
      if (j > i && row <= j) {
        take_out_column(step, columns, i, row, j, products, factors);
      }
    }
  }
  __syncthreads();
  for (int pair = thread; pair < pairs; pair += kThreads) {
    factors_RR[pair] = factors[pair] * scales[pair % columns];
  }
  if (thread < columns) {
    scales_R[thread] = scales[thread];
  }
}

constexpr int kTile = 2048;

// Rows that fit into a tile at a time: all of their numbers are read before the first is written.
__global__ void combine_kernel(float* p_NR,
                               std::int64_t rows,
                               int columns,
                               const double* factors_RR) {
  __shared__ float tile[kTile];
  const int tile_rows = kTile / columns;
  const std::int64_t begin = std::int64_t{blockIdx.x} * tile_rows;
  const int own_rows = static_cast<int>(rows - begin < tile_rows ? rows - begin : tile_rows);
  float* const p = p_NR + begin * columns;
  const int numbers = own_rows * columns;
  for (int k = static_cast<int>(threadIdx.x); k < numbers; k += kThreads) {
    tile[k] = p[k];
  }
  __syncthreads();
  for (int k = static_cast<int>(threadIdx.x); k < numbers; k += kThreads) {
    const int j = k % columns;
    const float* const row = tile + (k - j);
    double sum = 0.0;
    for (int i = 0; i <= j; ++i) {
      sum += static_cast<double>(row[i]) * factors_RR[i * columns + j];
    }
    p[k] = static_cast<float>(sum);
  }
}

}  // namespace

std::int64_t row_blocks(std::int64_t rows) {
  constexpr std::int64_t kRows = 64;
  return std::clamp<std::int64_t>((rows + kRows - 1) / kRows, 1, kMostRowBlocks);
}

void orthonormalize(const Launch& to,
                    OrthonormalRound round,
                    std::int64_t rows,
                    std::int64_t columns,
                    double epsilon,
                    float* p_NR,
                    double* products_BRR,
                    double* factors_RR,
                    double* scales_R) {
  const std::int64_t blocks = row_blocks(rows);
  const int width = static_cast<int>(columns);
  launch("products of columns", products_kernel, dim3(static_cast<unsigned>(blocks)),
         dim3(kThreads), 0, to.stream, p_NR, rows, width, (rows + blocks - 1) / blocks,
         products_BRR);
  const auto shared = static_cast<std::size_t>(2 * columns * columns) * sizeof(double);
  launch("factors of columns", factors_kernel, dim3(1), dim3(kThreads), shared, to.stream, round,
         width, blocks, epsilon, products_BRR, factors_RR, scales_R);
  const std::int64_t tile_rows = kTile / columns;
  launch("combined columns", combine_kernel,
         dim3(static_cast<unsigned>((rows + tile_rows - 1) / tile_rows)), dim3(kThreads), 0,
         to.stream, p_NR, rows, width, factors_RR);
}

}  // namespace dstrain::cuda
