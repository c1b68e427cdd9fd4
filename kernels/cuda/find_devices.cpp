#include "kernels/cuda/find_devices.h"

#include <array>

#include <fmt/format.h>

#include "kernels/backend.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/nvml.h"
#include "kernels/gpu_facts.h"

namespace dstrain {
namespace {

/// CUDA counts versions as 1000 · major + 10 · minor.
std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::string driver_text() {
  int driver = 0;
  cuda_check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  return version_text(driver);
}

GpuFacts facts_of(int index) {
  cudaDeviceProp properties{};
  cuda_check(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
  std::array<char, 32> bus_id{};
  cuda_check(cudaDeviceGetPCIBusId(bus_id.data(), static_cast<int>(bus_id.size()), index),
             "cudaDeviceGetPCIBusId");
  GpuFacts facts{.model = properties.name,
                 .total_bytes = static_cast<std::int64_t>(properties.totalGlobalMem),
                 .capability = 10 * properties.major + properties.minor,
                 .uuid = unique_cuda_name(index),
                 .bus_id = bus_id.data()};
  facts.unusable = why_unusable(facts.capability);
  // NVML is asked and not CUDA, which would make a context first.
  if (const auto memory = Nvml(bus_id.data()).memory()) {
    const bool is_part_of_it = facts.total_bytes < memory->total_bytes / 10 * 9;
    if (!is_part_of_it) facts.free_bytes = memory->available_bytes;
  }
  return facts;
}

std::string why_no_device(cudaError_t status) {
  int driver = 0;
  const bool has_driver = cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0;
  if (!has_driver) {
    return "no CUDA driver is installed on this machine (libcuda.so.1)";
  }
  if (status == cudaErrorInsufficientDriver) {
    return fmt::format(
        "the CUDA driver is for CUDA {}, which is older than what this program wants",
        version_text(driver));
  }
  if (status == cudaErrorNoDevice || status == cudaSuccess) {
    return "the CUDA driver sees no device (is CUDA_VISIBLE_DEVICES empty?)";
  }
  return fmt::format("the CUDA driver answers: {} ({})", cudaGetErrorString(status),
                     cudaGetErrorName(status));
}

}  // namespace

std::string why_unusable(int capability) {
  if (capability >= DSTRAIN_OLDEST_CAPABILITY) return {};
  return fmt::format(
      "it has compute capability {}.{}, and this dstrain is built for {}.{} and later",
      capability / 10, capability % 10, DSTRAIN_OLDEST_CAPABILITY / 10,
      DSTRAIN_OLDEST_CAPABILITY % 10);
}

std::string describe_cuda_device(int index) {
  cudaDeviceProp properties{};
  cuda_check(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
  return fmt::format("{}, sm_{}{}, {} multiprocessors, CUDA {}, driver {}", properties.name,
                     properties.major, properties.minor, properties.multiProcessorCount,
                     version_text(CUDART_VERSION), driver_text());
}

std::string unique_cuda_name(int index) {
  cudaDeviceProp properties{};
  cuda_check(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
  std::string name = "GPU-";
  for (std::size_t i = 0; i < sizeof(properties.uuid.bytes); ++i) {
    const bool begins_group = i == 4 || i == 6 || i == 8 || i == 10;
    name += fmt::format("{}{:02x}", begins_group ? "-" : "",
                        static_cast<unsigned char>(properties.uuid.bytes[i]));
  }
  return name;
}

GpusHere look_at_gpus() {
  GpusHere here;
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    (void)cudaGetLastError();
    here.why_none = why_no_device(status);
    return here;
  }
  here.driver = driver_text();
  for (int index = 0; index < count; ++index) {
    here.gpus.push_back(facts_of(index));
  }
  return here;
}

CudaDevices find_cuda_devices() {
  CudaDevices found{.built_with = "CUDA " + version_text(CUDART_VERSION)};
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    (void)cudaGetLastError();
    found.why_none = why_no_device(status);
    return found;
  }
  for (int index = 0; index < count; ++index) {
    found.names.push_back(describe_cuda_device(index));
  }
  return found;
}

}  // namespace dstrain
