// What the tests of failures over emulated NCCL share.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "kernels/core/check.h"
#include "kernels/cuda/cuda_check.h"
#include "tests/emulated_cuda/nccl_ranks.h"

namespace dstrain::test {

constexpr std::chrono::milliseconds kTimeout{800};

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

inline void all_reduce(const NcclRank& rank, const OnGpu<float>& values, Stream& stream) {
  rank.group.all_reduce(values.tensor(), ReduceOp::kSum, Purpose::kGradient, stream);
}

/// The type and words of what `body` throws.
inline std::string outcome(const std::function<void()>& body) {
  try {
    body();
  } catch (const Timeout& failure) {
    return std::string("Timeout: ") + failure.what();
  } catch (const PeerLost& failure) {
    return std::string("PeerLost: ") + failure.what();
  } catch (const InternalError& failure) {
    return std::string("InternalError: ") + failure.what();
  } catch (const CudaError& failure) {
    return std::string("CudaError: ") + failure.what();
  }
  return "nothing";
}

/// Waits until the others have reached `count`.
inline void wait_for(const std::atomic<int>& done, int count) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds{20};
  while (done < count && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds{2});
  }
}

}  // namespace dstrain::test
