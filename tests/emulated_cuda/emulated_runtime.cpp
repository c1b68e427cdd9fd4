// The CUDA runtime of the emulated GPU: memory is the host's, and everything is done when the call
// returns. What is allocated is filled with NaN and has guards around it, looked at when it is
// freed.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <cuda_runtime_api.h>

namespace {

constexpr std::size_t kGuard = 256;  // as cudaMalloc aligns
constexpr unsigned char kGuardByte = 0xab;

struct Header {
  std::size_t bytes;
};

void* allocate(std::size_t bytes) {
  auto* const memory = static_cast<unsigned char*>(
      std::aligned_alloc(kGuard, (3 * kGuard + bytes + kGuard - 1) / kGuard * kGuard));
  if (memory == nullptr) {
    return nullptr;
  }
  const Header header{bytes};
  std::memcpy(memory, &header, sizeof(header));
  unsigned char* const data = memory + 2 * kGuard;
  std::memset(data - kGuard, kGuardByte, kGuard);
  std::memset(data, 0xff, bytes);
  std::memset(data + bytes, kGuardByte, kGuard);
  return data;
}

void release(void* memory) {
  if (memory == nullptr) {
    return;
  }
  auto* const data = static_cast<unsigned char*>(memory);
  Header header{};
  std::memcpy(&header, data - 2 * kGuard, sizeof(header));
  for (std::size_t i = 0; i < kGuard; ++i) {
    if (data[-1 - static_cast<std::ptrdiff_t>(i)] != kGuardByte ||
        data[header.bytes + i] != kGuardByte) {
      std::fprintf(stderr, "emulated GPU: a write outside an allocation of %zu bytes\n",
                   header.bytes);
      std::abort();
    }
  }
  std::free(data - 2 * kGuard);
}

int some_object = 0;  // what opaque handles point to

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int /*device*/) {
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int /*device*/) {
  std::memset(properties, 0, sizeof(*properties));
  std::snprintf(properties->name, sizeof(properties->name), "emulated GPU");
  properties->major = 8;
  properties->multiProcessorCount = 3;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int /*device*/) {
  *value = attribute == cudaDevAttrMultiProcessorCount ? 3 : 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int /*device*/) {
  *pool = reinterpret_cast<cudaMemPool_t>(&some_object);
  return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) {
  return cudaSuccess;
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void* value) {
  *static_cast<std::uint64_t*>(value) = 0;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** data, std::size_t bytes) {
  // An emulated GPU has 1 GiB.
  *data = bytes <= std::size_t{1} << 30 ? allocate(bytes) : nullptr;
  return *data == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t cudaFree(void* data) {
  release(data);
  return cudaSuccess;
}
cudaError_t cudaMallocAsync(void** data, std::size_t bytes, cudaStream_t /*stream*/) {
  return cudaMalloc(data, bytes);
}
cudaError_t cudaFreeAsync(void* data, cudaStream_t /*stream*/) {
  return cudaFree(data);
}
cudaError_t cudaHostAlloc(void** data, std::size_t bytes, unsigned /*flags*/) {
  return cudaMalloc(data, bytes);
}
cudaError_t cudaFreeHost(void* data) {
  return cudaFree(data);
}
cudaError_t cudaMemGetInfo(std::size_t* available, std::size_t* total) {
  *available = std::size_t{1} << 30;
  *total = std::size_t{1} << 30;
  return cudaSuccess;
}
cudaError_t cudaMemset(void* data, int value, std::size_t bytes) {
  std::memset(data, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* data, int value, std::size_t bytes, cudaStream_t /*stream*/) {
  return cudaMemset(data, value, bytes);
}
cudaError_t cudaMemcpyAsync(
    void* to, const void* from, std::size_t bytes, cudaMemcpyKind /*kind*/, cudaStream_t) {
  std::memmove(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned /*flags*/) {
  *stream = reinterpret_cast<cudaStream_t>(&some_object);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t /*stream*/) {
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t /*stream*/) {
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned /*flags*/) {
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t /*stream*/, cudaHostFn_t function, void* data) {
  function(data);
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned /*flags*/) {
  *event = reinterpret_cast<cudaEvent_t>(&some_object);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t /*event*/) {
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t /*event*/) {
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) {
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t /*event*/) {
  return cudaSuccess;
}

const char* cudaGetErrorName(cudaError_t /*status*/) {
  return "cudaError";
}
const char* cudaGetErrorString(cudaError_t /*status*/) {
  return "refused by the emulation";
}
cudaError_t cudaGetLastError() {
  return cudaSuccess;
}

}  // extern "C"
