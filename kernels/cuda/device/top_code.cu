// A block of threads takes a block of numbers, which its registers hold while it finds the bound of
// the largest by counting, bit by bit, and then their places by prefix sums: the same on every run,
// and without atomics, which numbers of like size would queue for. Floor: the bytes of the values.
#include "kernels/cuda/device/block_sum.cuh"
#include "kernels/cuda/device/first_of_pack.cuh"
#include "kernels/cuda/device/top_code.h"

namespace dstrain::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kOwn = static_cast<int>(TopCode::kBlock / kThreads);  // neighbours of a thread
constexpr int kWarps = kThreads / 32;

struct Prefix {
  unsigned before;  ///< the sum over the threads before this one
  unsigned total;   ///< and over all
};

__device__ Prefix prefix_of(unsigned value) {
  __shared__ unsigned of_warps[kWarps];
  const unsigned lane = threadIdx.x % 32;
  const unsigned warp = threadIdx.x / 32;
  // Groups of lanes double: each adds up its partner's total, and has it before if it is the
  // second.
  Prefix prefix{0, value};
#pragma unroll
  for (unsigned distance = 1; distance < 32; distance *= 2) {
    const unsigned other = __shfl_xor_sync(kWholeWarp, prefix.total, static_cast<int>(distance));
    prefix.before += (lane & distance) != 0 ? other : 0U;
    prefix.total += other;
  }
  if (lane == 0) {
    of_warps[warp] = prefix.total;
  }
  __syncthreads();
  prefix.total = 0;
#pragma unroll
  for (unsigned k = 0; k < kWarps; ++k) {
    prefix.before += k < warp ? of_warps[k] : 0U;
    prefix.total += of_warps[k];
  }
  return prefix;
}

template <bool kAligned>
__global__ void __launch_bounds__(kThreads)
    encode_kernel(TopCode code, std::int64_t n, float* values, std::uint8_t* coded) {
  const std::int64_t first = std::int64_t{blockIdx.x} * TopCode::kBlock;
  const std::int64_t behind = n - first;
  const int size = static_cast<int>(behind < TopCode::kBlock ? behind : TopCode::kBlock);
  const int keep = static_cast<int>(code.sent(size));
  const int begin = static_cast<int>(threadIdx.x) * kOwn;
  float* const x = values + first + begin;
  const int left = size - begin;
  float own[kOwn];
  load_first<kAligned>(x, left, own);
  std::int32_t orders[kOwn];
#pragma unroll
  for (int k = 0; k < kOwn; ++k) {
    orders[k] = k < left ? magnitude_order(own[k]) : -1;
  }

  TopBound least;
  for (int bit = TopBound::kHighestBit; bit >= 0 && keep < size; --bit) {
    const std::int32_t raised = least.raised(bit);
    int count = 0;
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      count += orders[k] >= raised ? 1 : 0;
    }
    if (least.narrow(bit, block_sum(count), keep)) {
      break;
    }
  }

  // Two counts in one number: those above the bound in the low half, those at it in the high half.
  unsigned counts = 0;
#pragma unroll
  for (int k = 0; k < kOwn; ++k) {
    counts += orders[k] > least.bound ? 1U : orders[k] == least.bound ? 0x10000U : 0U;
  }
  const Prefix prefix = prefix_of(counts);
  unsigned equal = prefix.before >> 16U;
  const unsigned equal_sent = static_cast<unsigned>(keep) - (prefix.total & 0xffffU);
  std::int64_t entry = blockIdx.x * code.keep + (prefix.before & 0xffffU) +
                       (equal < equal_sent ? equal : equal_sent);
  auto* const sent = reinterpret_cast<float*>(coded);
  auto* const places = reinterpret_cast<std::uint16_t*>(coded + code.place_offset(n));
  bool took = false;
#pragma unroll
  for (int k = 0; k < kOwn; ++k) {
    const bool at_bound = orders[k] == least.bound;
    if (orders[k] > least.bound || (at_bound && equal < equal_sent)) {
      sent[entry] = own[k];
      places[entry] = static_cast<std::uint16_t>(begin + k);
      ++entry;
      own[k] = 0.0F;
      took = true;
    }
    equal += at_bound ? 1U : 0U;
  }
  if (took) {
    store_first<kAligned>(x, left, own);
  }
  if (blockIdx.x == 0) {
    const std::int64_t byte = code.used_bytes(n) + threadIdx.x;
    if (byte < code.bytes(n)) {
      coded[byte] = 0;
    }
  }
}

__global__ void __launch_bounds__(kThreads) sum_kernel(TopCode code,
                                                       std::int64_t messages,
                                                       std::int64_t n,
                                                       const std::uint8_t* coded,
                                                       float factor,
                                                       float* values) {
  __shared__ float sums[TopCode::kBlock];
  const std::int64_t first = std::int64_t{blockIdx.x} * TopCode::kBlock;
  const std::int64_t behind = n - first;
  const int size = static_cast<int>(behind < TopCode::kBlock ? behind : TopCode::kBlock);
  const int count = static_cast<int>(code.sent(size));
  for (int i = static_cast<int>(threadIdx.x); i < size; i += kThreads) {
    sums[i] = 0.0F;
  }
  for (std::int64_t index = 0; index < messages; ++index) {
    const std::uint8_t* const message = coded + index * code.bytes(n);
    const auto* const sent = reinterpret_cast<const float*>(message) + blockIdx.x * code.keep;
    const auto* const places =
        reinterpret_cast<const std::uint16_t*>(message + code.place_offset(n)) +
        blockIdx.x * code.keep;
    __syncthreads();  // a message's places are different ones, but not those of two messages
    for (int entry = static_cast<int>(threadIdx.x); entry < count; entry += kThreads) {
      sums[places[entry]] += sent[entry];
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < size; i += kThreads) {
    values[first + i] = factor * sums[i];
  }
}

dim3 grid_of(const TopCode& code, std::int64_t n) {
  return dim3(static_cast<unsigned>(code.blocks(n)));
}

}  // namespace

void encode_largest(
    const Launch& to, const TopCode& code, std::int64_t n, float* values, std::uint8_t* coded) {
  if (n == 0) {
    return;
  }
  launch("encode_largest", all_aligned(values) ? encode_kernel<true> : encode_kernel<false>,
         grid_of(code, n), dim3(kThreads), 0, to.stream, code, n, values, coded);
}

void sum_largest(const Launch& to,
                 const TopCode& code,
                 std::int64_t messages,
                 std::int64_t n,
                 const std::uint8_t* coded,
                 float factor,
                 float* values) {
  if (n == 0) {
    return;
  }
  launch("sum_largest", sum_kernel, grid_of(code, n), dim3(kThreads), 0, to.stream, code, messages,
         n, coded, factor, values);
}

}  // namespace dstrain::cuda
