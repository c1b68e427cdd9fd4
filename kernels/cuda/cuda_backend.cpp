#include <stdexcept>

#include <fmt/format.h>

#include "kernels/backend.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_graph_replay.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/find_devices.h"

namespace dstrain {
namespace {

/// Ada and Hopper introduced them.
void expect_fp8(const CudaDevice& device) {
  constexpr int kFirst = 89;
  if (device.compute_capability() < kFirst) {
    throw std::runtime_error(fmt::format(
        "{} is of compute capability {}.{}, and multiplies in 8 bits only from 8.9 on: set "
        "fp8.enabled to false",
        device.description(), device.compute_capability() / 10, device.compute_capability() % 10));
  }
}

}  // namespace

Backend make_cuda_backend(int index, const CudaOptions& options) {
  const CudaDevices found = find_cuda_devices();
  if (found.names.empty()) {
    throw std::runtime_error("no GPU to compute with: " + found.why_none);
  }
  if (index < 0 || index >= static_cast<int>(found.names.size())) {
    throw std::runtime_error(
        fmt::format("there is no device cuda:{}; this process sees {}", index, found.names.size()));
  }
  auto device = std::make_unique<CudaDevice>(index, options.name);
  if (const std::string why = why_unusable(device->compute_capability()); !why.empty()) {
    throw std::runtime_error(fmt::format("{} cannot be used: {}", device->description(), why));
  }
  if (options.fp8) {
    expect_fp8(*device);
  }
  auto ops = std::make_unique<CudaOps>(*device, options);
  auto graphs = options.graphs ? std::make_unique<CudaGraphReplay>(index) : nullptr;
  return {.device = std::move(device), .ops = std::move(ops), .graphs = std::move(graphs)};
}

}  // namespace dstrain
