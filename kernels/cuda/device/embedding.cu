// The gradient of a table without atomics: tokens are sorted by (id, place), after which the tokens
// of one id are neighbours in token order, and one block adds them. Keys are all different, so that
// any sorting network gives the same order: Batcher's bitonic one, in shared memory where it can.
#include "kernels/cuda/device/elementwise.cuh"
#include "kernels/cuda/device/embedding.h"
#include "kernels/ignored_target.h"

namespace dstrain::cuda {
namespace {

constexpr int kThreads = 256;

__device__ bool raised(const FaultPointers& faults) {
  return *faults.raised != 0;
}

__global__ void check_ids_kernel(FaultPointers faults,
                                 FaultSource source,
                                 const std::int32_t* ids,
                                 std::int64_t n,
                                 std::int64_t vocab_size) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n || (ids[i] >= 0 && ids[i] < vocab_size) ||
      (source == FaultSource::kTargets && ids[i] == kIgnoredTarget)) {
    return;
  }
  if (atomicCAS(faults.raised, 0, 1) == 0) {  // which one is reported matters little
    faults.seen->id = ids[i];
    faults.seen->vocab_size = static_cast<int>(vocab_size);
    __threadfence_system();
    faults.seen->source = source;
  }
}

/// One block a token. Floor: the bytes of x, twice.
template <int kWidth, typename T>
__global__ void embedding_forward_kernel(EmbeddingForward<T> e, FaultPointers faults) {
  if (raised(faults)) {
    return;
  }
  const std::int64_t n = blockIdx.x;
  const std::int64_t row = e.ids[n] - e.first;
  const bool held = 0 <= row && row < e.table_rows;
  for (std::int64_t c = threadIdx.x * kWidth; c < e.width; c += blockDim.x * kWidth) {
    float values[kWidth] = {};
    if (held) {
      load(e.table + row * e.width + c, values);
      if (e.positions != nullptr) {
        float position[kWidth];
        const std::int64_t place = e.position_ids == nullptr ? n % e.sequence : e.position_ids[n];
        load(e.positions + place * e.width + c, position);
#pragma unroll
        for (int k = 0; k < kWidth; ++k) {
          values[k] += position[k];
        }
      }
    }
    store(e.x + n * e.width + c, values);
  }
}

constexpr std::int64_t kChunk = 2048;  // keys that a block sorts in 16 KiB of shared memory
constexpr int kSortThreads = 1024;

__device__ void exchange(std::uint64_t* keys, std::int64_t low, std::int64_t high, bool ascending) {
  const std::uint64_t a = keys[low];
  const std::uint64_t b = keys[high];
  if ((a > b) == ascending) {
    keys[low] = b;
    keys[high] = a;
  }
}

__global__ void make_keys_kernel(const std::int32_t* ids,
                                 std::int64_t tokens,
                                 std::int64_t count,
                                 std::uint64_t* keys) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) {
    keys[i] = i < tokens ? static_cast<std::uint64_t>(static_cast<std::uint32_t>(ids[i])) << 32 |
                               static_cast<std::uint64_t>(i)
                         : ~std::uint64_t{0};
  }
}

/// Runs of length `run` that ascend and descend in turn are merged, from `first_run` up to
/// `last_run`, as far as their steps stay inside chunks.
__global__ void sort_chunks_kernel(std::uint64_t* keys,
                                   std::int64_t first_run,
                                   std::int64_t last_run) {
  __shared__ std::uint64_t chunk[kChunk];
  const std::int64_t base = std::int64_t{blockIdx.x} * kChunk;
  for (int i = static_cast<int>(threadIdx.x); i < kChunk; i += kSortThreads) {
    chunk[i] = keys[base + i];
  }
  __syncthreads();
  for (std::int64_t run = first_run; run <= last_run; run *= 2) {
    for (std::int64_t step = run / 2 < kChunk / 2 ? run / 2 : kChunk / 2; step > 0; step /= 2) {
      const std::int64_t low = threadIdx.x / step * 2 * step + threadIdx.x % step;
      exchange(chunk, low, low + step, ((base + low) & run) == 0);
      __syncthreads();
    }
  }
  for (int i = static_cast<int>(threadIdx.x); i < kChunk; i += kSortThreads) {
    keys[base + i] = chunk[i];
  }
}

__global__ void sort_step_kernel(std::uint64_t* keys, std::int64_t run, std::int64_t step) {
  const std::int64_t pair = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::int64_t low = pair / step * 2 * step + pair % step;
  exchange(keys, low, low + step, (low & run) == 0);
}

void sort(const Launch& to, std::uint64_t* keys, std::int64_t count) {
  const dim3 chunks(static_cast<unsigned>(count / kChunk));
  const dim3 pairs(static_cast<unsigned>(count / 2 / kThreads));
  launch("sort of tokens", sort_chunks_kernel, chunks, dim3(kSortThreads), 0, to.stream, keys,
         std::int64_t{2}, kChunk);
  for (std::int64_t run = 2 * kChunk; run <= count; run *= 2) {
    for (std::int64_t step = run / 2; step >= kChunk; step /= 2) {
      launch("sort of tokens", sort_step_kernel, pairs, dim3(kThreads), 0, to.stream, keys, run,
             step);
    }
    launch("sort of tokens", sort_chunks_kernel, chunks, dim3(kSortThreads), 0, to.stream, keys,
           run, run);
  }
}

constexpr int kColumnThreads = 128;

// A block for each place of the sorted order and tile of columns; those where an id begins add its
// tokens, four loads in flight. Floor: the bytes of dx, and of the rows named, twice.
template <int kWidth, typename T>
__global__ void add_rows_kernel(EmbeddingBackward<T> e,
                                const std::uint64_t* keys,
                                FaultPointers faults) {
  const std::int64_t begin = blockIdx.x;
  const std::uint64_t id = keys[begin] >> 32;
  const std::int64_t row = static_cast<std::int64_t>(id) - e.first;
  const std::int64_t column = (std::int64_t{blockIdx.y} * kColumnThreads + threadIdx.x) * kWidth;
  if ((begin > 0 && keys[begin - 1] >> 32 == id) || row < 0 || row >= e.table_rows ||
      column >= e.width || raised(faults)) {
    return;
  }
  float* const out = e.dtable + row * e.width + column;
  float totals[kWidth];
  load(out, totals);
  constexpr int kBatch = 4;
  for (std::int64_t at = begin; at < e.tokens && keys[at] >> 32 == id; at += kBatch) {
    float values[kBatch][kWidth];
    bool is_one[kBatch];
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      is_one[k] = at + k < e.tokens && keys[at + k] >> 32 == id;
      if (is_one[k]) {
        const auto n = static_cast<std::int64_t>(keys[at + k] & 0xffffffffU);
        load(e.dx + n * e.width + column, values[k]);
      }
    }
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
#pragma unroll
      for (int c = 0; c < kWidth; ++c) {
        totals[c] += is_one[k] ? values[k][c] : 0.0F;
      }
    }
  }
  store(out, totals);
}

/// A block for each position and tile of columns, over the sequences in order.
template <int kWidth, typename T>
__global__ void add_positions_kernel(EmbeddingBackward<T> e, FaultPointers faults) {
  const std::int64_t position = blockIdx.x;
  const std::int64_t column = (std::int64_t{blockIdx.y} * kColumnThreads + threadIdx.x) * kWidth;
  if (column >= e.width || raised(faults)) {
    return;
  }
  float* const out = e.dpositions + position * e.width + column;
  float totals[kWidth];
  load(out, totals);
  for (std::int64_t n = position; n < e.tokens; n += e.sequence) {
    float values[kWidth];
    load(e.dx + n * e.width + column, values);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      totals[k] += values[k];
    }
  }
  store(out, totals);
}

__global__ void zero_kernel(float* x, std::int64_t n, FaultPointers faults) {
  if (raised(faults)) {
    return;
  }
  const std::int64_t stride = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += stride) {
    x[i] = 0.0F;
  }
}

dim3 blocks_of(std::int64_t n, std::int64_t each) {
  return dim3(static_cast<unsigned>((n + each - 1) / each));
}

template <int kWidth, typename T>
void launch_backward(const Launch& to, const EmbeddingBackward<T>& e, const std::uint64_t* keys) {
  constexpr std::int64_t kColumns = std::int64_t{kColumnThreads} * kWidth;
  const auto tiles = static_cast<unsigned>((e.width + kColumns - 1) / kColumns);
  launch("embedding_backward", add_rows_kernel<kWidth, T>,
         dim3(static_cast<unsigned>(e.tokens), tiles), dim3(kColumnThreads), 0, to.stream, e, keys,
         to.faults);
  if (e.dpositions != nullptr) {
    const std::int64_t positions = e.tokens < e.sequence ? e.tokens : e.sequence;
    launch("embedding_backward", add_positions_kernel<kWidth, T>,
           dim3(static_cast<unsigned>(positions), tiles), dim3(kColumnThreads), 0, to.stream, e,
           to.faults);
  }
}

}  // namespace

void check_ids(const Launch& to,
               FaultSource source,
               const std::int32_t* ids,
               std::int64_t n,
               std::int64_t vocab_size) {
  if (n > 0) {
    launch("check of ids", check_ids_kernel, blocks_of(n, kThreads), dim3(kThreads), 0, to.stream,
           to.faults, source, ids, n, vocab_size);
  }
}

template <typename T>
void embedding_forward(const Launch& to, const EmbeddingForward<T>& e) {
  if (e.tokens == 0 || e.width == 0) {
    return;
  }
  const dim3 grid(static_cast<unsigned>(e.tokens));
  if (e.width % kPackWidth == 0 && all_aligned(e.table, e.positions, e.x)) {
    launch("embedding_forward", embedding_forward_kernel<kPackWidth, T>, grid,
           dim3(threads_for_row(e.width, kPackWidth, kThreads)), 0, to.stream, e, to.faults);
  } else {
    launch("embedding_forward", embedding_forward_kernel<1, T>, grid,
           dim3(threads_for_row(e.width, 1, kThreads)), 0, to.stream, e, to.faults);
  }
}

std::int64_t embedding_keys(std::int64_t tokens) {
  std::int64_t count = kChunk;
  while (count < tokens) {
    count *= 2;
  }
  return count;
}

template <typename T>
void embedding_backward(const Launch& to, const EmbeddingBackward<T>& e, std::uint64_t* keys) {
  if (e.tokens == 0 || e.width == 0) {
    return;
  }
  const std::int64_t count = embedding_keys(e.tokens);
  launch("embedding_backward", make_keys_kernel, blocks_of(count, kThreads), dim3(kThreads), 0,
         to.stream, e.ids, e.tokens, count, keys);
  sort(to, keys, count);
  if (e.width % kPackWidth == 0 && all_aligned(e.dx, e.dtable, e.dpositions)) {
    launch_backward<kPackWidth>(to, e, keys);
  } else {
    launch_backward<1>(to, e, keys);
  }
}

void zero_unless_fault(const Launch& to, float* x, std::int64_t n) {
  if (n == 0) {
    return;
  }
  constexpr std::int64_t kBlocksPerMultiprocessor = 16;
  const std::int64_t blocks = std::min<std::int64_t>((n + kThreads - 1) / kThreads,
                                                     to.multiprocessors * kBlocksPerMultiprocessor);
  launch("zeros", zero_kernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0, to.stream, x,
         n, to.faults);
}

template void embedding_forward(const Launch&, const EmbeddingForward<float>&);
template void embedding_forward(const Launch&, const EmbeddingForward<BF16>&);
template void embedding_forward(const Launch&, const EmbeddingForward<F16>&);
template void embedding_backward(const Launch&, const EmbeddingBackward<float>&, std::uint64_t*);
template void embedding_backward(const Launch&, const EmbeddingBackward<BF16>&, std::uint64_t*);
template void embedding_backward(const Launch&, const EmbeddingBackward<F16>&, std::uint64_t*);

}  // namespace dstrain::cuda
