#include "kernels/cuda/cuda_device.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "engine/base/amount_text.h"
#include "kernels/core/check.h"
#include "kernels/core/stream_decorator.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/find_devices.h"

namespace dstrain {
namespace {

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  cuda_check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return value;
}

cudaMemPool_t scratch_pool(int device) {
  cudaMemPool_t pool = nullptr;
  cuda_check(cudaDeviceGetDefaultMemPool(&pool, device), "cudaDeviceGetDefaultMemPool");
  return pool;
}

/// Scratch that was used once stays at hand: by default the pool gives it back to the driver
/// whenever the host waits.
void keep_scratch(int device) {
  std::uint64_t all = UINT64_MAX;
  cuda_check(cudaMemPoolSetAttribute(scratch_pool(device), cudaMemPoolAttrReleaseThreshold, &all),
             "cudaMemPoolSetAttribute");
}

/// A host thread that waits for the GPU sleeps. CUDA would have it spin, which answers some tens of
/// microseconds sooner, and a step waits a few times; but the core is wanted by the threads that
/// carry messages and load data, and a rank that spins looks to the launcher like one that loops.
void sleep_while_waiting() {
  cuda_check(cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync), "cudaSetDeviceFlags");
}

/// Where pinned memory begins, so that a disk can be read into it past the page cache.
/// cudaHostAlloc aligns small allocations to 512 bytes.
constexpr std::int64_t kHostPage = 4096;

}  // namespace

CudaDevice::CudaDevice(int index, std::string name)
    : index_(index), name_(name.empty() ? fmt::format("cuda:{}", index) : std::move(name)) {
  use();
  sleep_while_waiting();
  check(attribute(cudaDevAttrMemoryPoolsSupported, index) != 0,
        "cuda:{} has no stream-ordered memory (cudaDevAttrMemoryPoolsSupported)", index);
  multiprocessors_ = attribute(cudaDevAttrMultiProcessorCount, index);
  keep_scratch(index);
  faults_ = std::make_unique<FaultBox>();
  compute_ = std::make_unique<CudaStream>(index, *faults_);
  trace_ = make_gpu_trace();
}

void CudaDevice::use() const {
  cuda_check(cudaSetDevice(index_), "cudaSetDevice");
}

std::string CudaDevice::description() const {
  return fmt::format("{}, {}", name_, describe_cuda_device(index_));
}

std::string CudaDevice::model() const {
  cudaDeviceProp properties{};
  cuda_check(cudaGetDeviceProperties(&properties, index_), "cudaGetDeviceProperties");
  return properties.name;
}

std::optional<DeviceReadings> CudaDevice::readings() {
  constexpr std::chrono::seconds kFresh{1};
  const std::lock_guard lock(readings_mutex_);
  const Clock::time_point now = Clock::now();
  if (read_at_ && now - *read_at_ < kFresh) {
    return readings_;
  }
  if (nvml_ == nullptr) {
    std::array<char, 32> bus_id{};
    cuda_check(cudaDeviceGetPCIBusId(bus_id.data(), static_cast<int>(bus_id.size()), index_),
               "cudaDeviceGetPCIBusId");
    nvml_ = std::make_unique<Nvml>(bus_id.data());
  }
  const std::int64_t peak = readings_.peak_bytes;
  readings_ = nvml_->read();
  const CudaMemoryUse held = memory_use();
  readings_.used_bytes =
      std::max(readings_.used_bytes, held.region_bytes + held.peak_scratch_bytes);
  readings_.peak_bytes =
      std::max({peak, readings_.used_bytes, held.peak_region_bytes + held.peak_scratch_bytes});
  read_at_ = now;
  return readings_;
}

int CudaDevice::compute_capability() const {
  return 10 * attribute(cudaDevAttrComputeCapabilityMajor, index_) +
         attribute(cudaDevAttrComputeCapabilityMinor, index_);
}

std::string CudaDevice::identity() const {
  return unique_cuda_name(index_);
}

MemoryInfo CudaDevice::memory_info() const {
  use();
  std::size_t available = 0;
  std::size_t total = 0;
  cuda_check(cudaMemGetInfo(&available, &total), "cudaMemGetInfo");
  return {.total_bytes = static_cast<std::int64_t>(total),
          .available_bytes = static_cast<std::int64_t>(available)};
}

CudaMemoryUse CudaDevice::memory_use() const {
  std::uint64_t scratch = 0;
  cuda_check(
      cudaMemPoolGetAttribute(scratch_pool(index_), cudaMemPoolAttrReservedMemHigh, &scratch),
      "cudaMemPoolGetAttribute");
  std::uint64_t graphs = 0;  // scratch of what is recorded in graphs has a pool of its own
  cuda_check(cudaDeviceGetGraphMemAttribute(index_, cudaGraphMemAttrReservedMemHigh, &graphs),
             "cudaDeviceGetGraphMemAttribute");
  return {.region_bytes = region_bytes_,
          .peak_region_bytes = peak_region_bytes_,
          .peak_scratch_bytes = static_cast<std::int64_t>(scratch + graphs)};
}

DeviceMemory CudaDevice::allocate(std::int64_t bytes, const std::string& what) {
  check(bytes >= 0, "{}: cannot allocate {} bytes", what, bytes);
  if (bytes == 0) {
    return {};
  }
  use();
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, static_cast<std::size_t>(bytes));
  if (status == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    const MemoryInfo info = memory_info();
    const CudaMemoryUse held = memory_use();
    throw OutOfMemory(fmt::format(
        "out of memory: {} needs {} bytes ({}), {} of {} are free on {}; this process holds {} in "
        "other regions and {} of scratch",
        what, bytes, gib_text(bytes), gib_text(info.available_bytes), gib_text(info.total_bytes),
        name_, gib_text(held.region_bytes), gib_text(held.peak_scratch_bytes)));
  }
  cuda_check(status, fmt::format("cudaMalloc of {} bytes for {}", bytes, what));
  DeviceMemory memory(data, bytes, [this](void* released, std::int64_t size) {
    (void)cudaSetDevice(index_);
    (void)cudaFree(released);  // waits for work that uses it
    region_bytes_ -= size;
  });
  const std::int64_t now = region_bytes_ += bytes;
  std::int64_t peak = peak_region_bytes_;
  while (now > peak && !peak_region_bytes_.compare_exchange_weak(peak, now)) {
  }
  // Writes zeros before any stream can read the memory.
  const cudaStream_t stream = compute_->use();
  cuda_check(cudaMemsetAsync(data, 0, static_cast<std::size_t>(bytes), stream), "cudaMemsetAsync");
  cuda_check(cudaStreamSynchronize(stream), "cudaStreamSynchronize, or work before it,");
  return memory;
}

DeviceMemory CudaDevice::allocate_host(std::int64_t bytes, const std::string& what) {
  check(bytes >= 0, "{}: cannot allocate {} bytes", what, bytes);
  if (bytes == 0) {
    return {};
  }
  use();
  void* whole = nullptr;
  const cudaError_t status =
      cudaHostAlloc(&whole, static_cast<std::size_t>(bytes + kHostPage - 1), cudaHostAllocPortable);
  if (status == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    throw OutOfMemory(fmt::format("out of memory: {} needs {} bytes ({}) of pinned host memory",
                                  what, bytes, gib_text(bytes)));
  }
  cuda_check(status, fmt::format("cudaHostAlloc of {} bytes for {}", bytes, what));
  const auto address = reinterpret_cast<std::uintptr_t>(whole);
  void* const data = reinterpret_cast<void*>((address + kHostPage - 1) / kHostPage * kHostPage);
  DeviceMemory memory(data, bytes, [index = index_, whole](void*, std::int64_t) {
    (void)cudaSetDevice(index);
    (void)cudaFreeHost(whole);
  });
  std::memset(data, 0, static_cast<std::size_t>(bytes));
  return memory;
}

void CudaDevice::copy_from_host(const void* host, Tensor device, Stream& stream) {
  if (device.bytes() > 0) {
    cuda_check(cudaMemcpyAsync(device.data(), host, static_cast<std::size_t>(device.bytes()),
                               cudaMemcpyHostToDevice, handle_of(stream)),
               "cudaMemcpyAsync from the host");
  }
}

void CudaDevice::copy_to_host(ConstTensor device, void* host, Stream& stream) {
  if (device.bytes() > 0) {
    cuda_check(cudaMemcpyAsync(host, device.data(), static_cast<std::size_t>(device.bytes()),
                               cudaMemcpyDeviceToHost, handle_of(stream)),
               "cudaMemcpyAsync to the host");
  }
}

void CudaDevice::copy(ConstTensor from, Tensor to, Stream& stream) {
  check(from.bytes() == to.bytes(), "a copy of {} bytes to {}", from.bytes(), to.bytes());
  if (from.data() != to.data() && from.bytes() > 0) {
    cuda_check(cudaMemcpyAsync(to.data(), from.data(), static_cast<std::size_t>(from.bytes()),
                               cudaMemcpyDeviceToDevice, handle_of(stream)),
               "cudaMemcpyAsync on the device");
  }
}

std::unique_ptr<Stream> CudaDevice::make_side_stream(const std::string& /*name*/) {
  return std::make_unique<CudaStream>(index_, *faults_);
}

cudaStream_t handle_of(Stream& stream) {
  auto* const cuda = dynamic_cast<CudaStream*>(&innermost(stream));
  check(cuda != nullptr, "work for a GPU was given a stream that is not of CUDA");
  return cuda->use();
}

}  // namespace dstrain
