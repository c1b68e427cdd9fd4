#include <stdexcept>

#include <fmt/format.h>

#include "kernels/backend.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_graph_replay.h"
#include "kernels/cuda/cuda_ops.h"

namespace dstrain {

Backend make_cuda_backend(int index, const CudaOptions& options) {
  const CudaDevices found = find_cuda_devices();
  if (found.names.empty()) {
    throw std::runtime_error("no GPU to compute with: " + found.why_none);
  }
  if (index < 0 || index >= static_cast<int>(found.names.size())) {
    throw std::runtime_error(
        fmt::format("there is no device cuda:{}; this process sees {}", index, found.names.size()));
  }
  auto device = std::make_unique<CudaDevice>(index);
  auto ops = std::make_unique<CudaOps>(*device, options);
  auto graphs = options.graphs ? std::make_unique<CudaGraphReplay>(index) : nullptr;
  return {.device = std::move(device), .ops = std::move(ops), .graphs = std::move(graphs)};
}

}  // namespace dstrain
