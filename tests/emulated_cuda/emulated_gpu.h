// A GPU emulated on the processor, so that the CUDA backend's own source runs where there is none.
//
// Kernels are compiled by the host's compiler against include/kernels/cuda/device/language.cuh, and
// the CUDA runtime and cuBLASLt are small functions of the same names. A stream is a thread
// (emulated_stream.h). One kernel runs at a time, its blocks one after another; the threads of a
// block are fibers, which switch where threads wait for each other. What this finds: wrong indices,
// wrong formulas, wrong layouts, missing barriers that a switch exposes, missing waits between
// streams or of the host, reads of memory that nobody wrote (it is filled with NaN), writes outside
// an allocation (guarded), the host's memory given to the GPU and the other way round
// (emulated_memory.h), and vector accesses that are not aligned (UBSan). It does not find races
// between threads of a kernel, what the hardware refuses, or slowness.
#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <functional>
#include <vector>

#include <cuda_runtime_api.h>

namespace dstrain::emulated {

/// A copy into shared memory that a thread has begun and not waited for. The copy is made at the
/// last moment, so that a read that comes too early finds the old content.
struct AsyncCopy {
  void* to;
  const void* from;  ///< nullptr: zeros
  std::size_t bytes;
  int group;
};
struct ThreadState {
  uint3 index;
  std::vector<AsyncCopy> copies;
  int committed = 0;  ///< groups of copies
};
struct BlockState {
  uint3 index;
  dim3 block_dim;
  dim3 grid_dim;
};

/// The state of the thread that runs now.
ThreadState& thread();
const BlockState& block();
int lane();

void synchronize_block();
void synchronize_warp();

/// What a lane hands to the others of its warp: up to eight registers of 32 bits.
using Handed = std::array<std::byte, 32>;
/// Waits for all lanes, and returns what each handed over. It is valid until the lanes have met
/// once more: the next exchange uses another buffer, and only a later one this buffer again.
const std::array<Handed, 32>& exchange(const Handed& mine);
template <typename T>
const std::array<Handed, 32>& exchange(const T& mine) {
  static_assert(sizeof(T) <= sizeof(Handed));
  Handed handed{};
  std::memcpy(handed.data(), &mine, sizeof(T));
  return exchange(handed);
}

void* shared_memory();

/// The time of a kernel on its stream's clock (emulated_stream.h), whatever it does.
inline constexpr double kKernelMicroseconds = 2.0;

/// Enqueues a kernel.
void launch(cudaStream_t stream,
            const char* name,
            dim3 grid,
            dim3 block,
            std::size_t shared_bytes,
            std::function<void()> kernel);

}  // namespace dstrain::emulated
