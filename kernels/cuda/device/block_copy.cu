// Blocks of elements moved from places to others: packs of neighbours of a run where runs begin and
// end at whole packs in both tensors, else elements. The floor is the bytes of both.
#include "kernels/cuda/device/block_copy.h"
#include "kernels/cuda/device/elementwise.cuh"

namespace dstrain::cuda {
namespace {

/// The places of neighbours of one run. kWidth divides the run wherever it is more than 1.
struct Neighbours {
  std::int64_t from;
  std::int64_t to;

  __device__ Neighbours(const BlockCopy& copy, std::int64_t i) {
    const std::int64_t run = i / copy.run;
    const std::int64_t c = i % copy.run;
    from = copy.place(copy.from, run) + c;
    to = copy.place(copy.to, run) + c;
  }
};

template <typename T>
struct CopyBlocks {
  BlockCopy copy;
  const T* from;
  T* to;

  template <int kWidth>
  __device__ void at(std::int64_t i) const {
    const Neighbours places(copy, i);
    using Neighbour = Pack<T, kWidth>;
    *reinterpret_cast<Neighbour*>(to + places.to) =
        *reinterpret_cast<const Neighbour*>(from + places.from);
  }
};

template <typename T>
struct AddBlocks {
  BlockCopy copy;
  const T* from;
  T* sums;

  template <int kWidth>
  __device__ void at(std::int64_t i) const {
    const Neighbours places(copy, i);
    float added[kWidth];
    float sum[kWidth];
    load(from + places.from, added);
    load(sums + places.to, sum);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      sum[k] += added[k];
    }
    store(sums + places.to, sum);
  }
};

bool in_packs(const BlockCopy& copy) {
  bool whole = copy.run % kPackWidth == 0;
  for (const BlockPlaces* places : {&copy.from, &copy.to}) {
    whole = whole && places->first % kPackWidth == 0;
    for (int d = 0; d < kBlockCounts; ++d) {
      whole = whole && (copy.counts[d] == 1 || places->strides[d] % kPackWidth == 0);
    }
  }
  return whole;
}

}  // namespace

template <typename T>
void copy_blocks(const Launch& to, const BlockCopy& copy, const T* from, T* written) {
  launch_elementwise("copy_blocks", to, copy.runs() * copy.run,
                     in_packs(copy) && all_aligned(from, written),
                     CopyBlocks<T>{copy, from, written});
}

template <typename T>
void add_blocks(const Launch& to, const BlockCopy& copy, const T* from, T* sums) {
  launch_elementwise("add_blocks", to, copy.runs() * copy.run,
                     in_packs(copy) && all_aligned(from, sums), AddBlocks<T>{copy, from, sums});
}

template void copy_blocks(const Launch&, const BlockCopy&, const std::uint8_t*, std::uint8_t*);
template void copy_blocks(const Launch&, const BlockCopy&, const std::uint16_t*, std::uint16_t*);
template void copy_blocks(const Launch&, const BlockCopy&, const std::uint32_t*, std::uint32_t*);
template void copy_blocks(const Launch&, const BlockCopy&, const std::uint64_t*, std::uint64_t*);
template void add_blocks(const Launch&, const BlockCopy&, const float*, float*);
template void add_blocks(const Launch&, const BlockCopy&, const BF16*, BF16*);
template void add_blocks(const Launch&, const BlockCopy&, const F16*, F16*);

}  // namespace dstrain::cuda
