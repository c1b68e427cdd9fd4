// Ranks as threads, each with a GPU of its own, in one group over NCCL: four emulated GPUs and an
// emulated NCCL, or the real ones that exist.
#pragma once

#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "engine/comm/nccl_communicator.h"
#include "kernels/backend.h"
#include "kernels/cuda/cuda_device.h"
#include "tests/harness/skip.h"
#include "tests/unit/comm/ranks.h"

namespace dstrain::test {

struct NcclRank {
  Store& store;
  CudaDevice& device;
  Communicator& group;
  [[nodiscard]] int rank() const { return group.rank(); }
  [[nodiscard]] Stream& stream() const { return device.compute_stream(); }
};

inline NcclOptions patient() {
  return {.timeout = std::chrono::seconds{20}, .connect_timeout = std::chrono::seconds{20}};
}
inline NcclOptions with_timeout(std::chrono::milliseconds timeout) {
  return {.timeout = timeout, .connect_timeout = std::chrono::seconds{20}};
}

inline int num_gpus() {
  setenv("DSTRAIN_EMULATED_GPUS", "4", 1);
  return static_cast<int>(find_cuda_devices().names.size());
}

/// Returns false, and says so, where the machine has fewer GPUs than ranks.
inline bool has_gpus(int ranks) {
  if (num_gpus() >= ranks) {
    return true;
  }
  testing::skip(
      fmt::format("GPUs that it needs: {}; that this process sees: {}", ranks, num_gpus()));
  return false;
}

/// Runs `body` in one thread a rank; `options_of(rank)` may differ. Members leave a group that
/// works together.
inline void run_nccl_ranks(int size,
                           const std::function<NcclOptions(int)>& options_of,
                           const std::function<void(NcclRank)>& body) {
  if (!has_gpus(size)) {
    return;
  }
  const auto store = make_memory_store();
  run_threads(size, [&](int rank) {
    const Backend backend = make_cuda_backend(rank);
    auto& device = dynamic_cast<CudaDevice&>(*backend.device);
    const auto group =
        make_nccl_communicator({.name = "data", .members = everyone(size), .rank = rank}, *store,
                               device, options_of(rank));
    body({*store, device, *group});
  });
}
inline void run_nccl_ranks(int size, const std::function<void(NcclRank)>& body) {
  run_nccl_ranks(
      size, [](int) { return patient(); }, body);
}

/// A tensor on the GPU and its copies on the host.
template <typename T>
class OnGpu {
 public:
  OnGpu(CudaDevice& device, std::vector<T> values)
      : device_(device),
        size_(static_cast<std::int64_t>(values.size())),
        memory_(device.allocate(size_ * static_cast<std::int64_t>(sizeof(T)), "a test's tensor")) {
    device.copy_from_host(values.data(), tensor(), device.compute_stream());
    device.compute_stream().synchronize();
  }
  [[nodiscard]] Tensor tensor() const { return {memory_.data(), DTypeOf<T>::value, Shape{size_}}; }
  [[nodiscard]] std::vector<T> values() const {
    std::vector<T> host(static_cast<std::size_t>(size_));
    device_.copy_to_host(tensor(), host.data(), device_.compute_stream());
    device_.compute_stream().synchronize();
    return host;
  }

 private:
  CudaDevice& device_;
  std::int64_t size_;
  DeviceMemory memory_;
};

}  // namespace dstrain::test
