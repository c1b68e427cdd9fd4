// The CUDA runtime of the emulated GPUs, as asynchronous as CUDA's. Copies to memory that is not
// pinned are so too: CUDA would wait for them, which nobody should rely on. As with CUDA, a thread
// that waits keeps its core busy unless the device's or the event's flags ask for better.
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include <cuda_runtime_api.h>

#include "tests/emulated_cuda/emulated_memory.h"
#include "tests/emulated_cuda/emulated_stream.h"

using namespace dstrain;  // the functions below are C's

namespace {

int some_object = 0;  // what opaque handles point to
using Graph = std::shared_ptr<emulated::Stream::Graph>;

emulated::Event& event_of(cudaEvent_t handle) {
  return *reinterpret_cast<emulated::Event*>(handle);
}

std::atomic<unsigned>& flags_of(int device) {
  static std::array<std::atomic<unsigned>, 64> flags{};
  return flags.at(static_cast<std::size_t>(device));
}

void wait_for(const emulated::Point& point, bool asleep) {
  while (!asleep && !point.has_passed()) {
  }
  point.wait();
}

/// A thread that records a graph (cudaStreamCaptureModeThreadLocal) must not call what may wait for
/// a stream, nor ask for one: the call is refused, and what was recorded is lost.
bool is_refused_while_recording() {
  emulated::Stream* const stream = emulated::recorded_stream();
  if (stream != nullptr) stream->break_capture();
  return stream != nullptr;
}

bool is_pinned(const void* host) {
  const std::optional<emulated::Memory> memory = emulated::find_memory(host);
  return memory.has_value() && memory->device == emulated::Memory::kPinned;
}

/// From memory that is not pinned CUDA copies before the call returns.
void copy_from_pageable(void* to, const void* from, std::size_t bytes, emulated::Stream& stream) {
  const auto* const first = static_cast<const std::byte*>(from);
  stream.enqueue([to, bytes, copy = std::vector<std::byte>(first, first + bytes)] {
    std::memcpy(to, copy.data(), bytes);
  });
}

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = emulated::num_devices();
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  emulated::current_device() = device;
  return device < emulated::num_devices() ? cudaSuccess : cudaErrorInvalidDevice;
}
cudaError_t cudaSetDeviceFlags(unsigned flags) {
  flags_of(emulated::current_device()) = flags;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = emulated::current_device();
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  std::memset(properties, 0, sizeof(*properties));
  std::snprintf(properties->name, sizeof(properties->name), "emulated GPU");
  properties->totalGlobalMem = emulated::kMemoryOfGpu;
  properties->major = emulated::compute_capability() / 10;
  properties->minor = emulated::compute_capability() % 10;
  properties->multiProcessorCount = 3;
  const auto uuid = emulated::uuid_of(emulated::physical_device(device));
  std::memcpy(properties->uuid.bytes, uuid.data(), uuid.size());
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int /*device*/) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = 3;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = emulated::compute_capability() / 10;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = emulated::compute_capability() % 10;
      break;
    default:
      *value = 1;
  }
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* bus_id, int length, int device) {
  std::snprintf(bus_id, static_cast<std::size_t>(length), "0000:%02x:00.0",
                static_cast<unsigned>(emulated::physical_device(device)));
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
cudaError_t cudaDeviceSynchronize() {
  if (is_refused_while_recording()) return cudaErrorStreamCaptureUnsupported;
  emulated::synchronize_device(emulated::current_device());
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** data, std::size_t bytes) {
  if (is_refused_while_recording()) return cudaErrorStreamCaptureUnsupported;
  *data = emulated::allocate(bytes, {.device = emulated::current_device()});
  return *data == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t cudaFree(void* data) {
  if (is_refused_while_recording()) return cudaErrorStreamCaptureUnsupported;
  if (data != nullptr) emulated::synchronize_device(emulated::current_device());
  emulated::release(data);
  return cudaSuccess;
}
cudaError_t cudaMallocAsync(void** data, std::size_t bytes, cudaStream_t stream) {
  if (emulated::stream_of(stream).is_capturing()) {
    *data = emulated::stream_of(stream).allocate_in_capture(bytes);
    return cudaSuccess;
  }
  *data = emulated::allocate(bytes, {.device = emulated::stream_of(stream).device()});
  return *data == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t cudaFreeAsync(void* data, cudaStream_t stream) {
  if (emulated::stream_of(stream).is_capturing()) return cudaSuccess;  // the graph's
  emulated::stream_of(stream).enqueue_host([data] { emulated::release(data); });
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** data, std::size_t bytes, unsigned /*flags*/) {
  if (is_refused_while_recording()) return cudaErrorStreamCaptureUnsupported;
  *data = emulated::allocate(bytes, {.device = emulated::Memory::kPinned});
  return *data == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t cudaFreeHost(void* data) {
  if (is_refused_while_recording()) return cudaErrorStreamCaptureUnsupported;
  emulated::release(data);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* available, std::size_t* total) {
  *available = emulated::free_bytes(emulated::current_device());
  *total = emulated::kMemoryOfGpu;
  return cudaSuccess;
}
cudaError_t cudaMemset(void* data, int value, std::size_t bytes) {
  if (is_refused_while_recording()) return cudaErrorStreamCaptureUnsupported;
  return cudaMemsetAsync(data, value, bytes, nullptr);
}
cudaError_t cudaMemsetAsync(void* data, int value, std::size_t bytes, cudaStream_t handle) {
  emulated::Stream& stream = emulated::stream_of(handle);
  emulated::check_on_device("cudaMemsetAsync", data, stream.device());
  stream.enqueue([=] { std::memset(data, value, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(
    void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t handle) {
  emulated::Stream& stream = emulated::stream_of(handle);
  if (kind != cudaMemcpyDeviceToHost) {
    emulated::check_on_device("cudaMemcpyAsync", to, stream.device());
  }
  if (kind != cudaMemcpyHostToDevice) {
    emulated::check_on_device("cudaMemcpyAsync", from, stream.device());
  }
  if (kind == cudaMemcpyDeviceToHost && !is_pinned(to)) {
    emulated::count_bytes_to_pageable(bytes);
  }
  if (kind == cudaMemcpyHostToDevice && !is_pinned(from)) {
    copy_from_pageable(to, from, bytes, stream);
  } else {
    stream.enqueue([=] { std::memmove(to, from, bytes); });
  }
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned /*flags*/) {
  *stream = reinterpret_cast<cudaStream_t>(new emulated::Stream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete &emulated::stream_of(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (is_refused_while_recording()) return cudaErrorStreamCaptureUnsupported;
  const int device = emulated::stream_of(stream).device();
  wait_for(*emulated::stream_of(stream).record(),
           (flags_of(device) & cudaDeviceScheduleBlockingSync) != 0);
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (is_refused_while_recording()) return cudaErrorStreamCaptureUnsupported;
  return emulated::stream_of(stream).record()->has_passed() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned /*flags*/) {
  // A graph cannot wait for what is not in it.
  if (emulated::stream_of(stream).is_capturing() && !event_of(event).is_of_graph) {
    (void)is_refused_while_recording();
    return cudaErrorStreamCaptureIsolation;
  }
  if (const auto point = event_of(event).last; point != nullptr) {
    emulated::stream_of(stream).enqueue_host([point] { point->wait(); });
  }
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  emulated::stream_of(stream).enqueue_host([=] { function(data); });
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode /*mode*/) {
  if (stream == nullptr || emulated::stream_of(stream).is_capturing()) {
    return cudaErrorStreamCaptureUnsupported;
  }
  emulated::stream_of(stream).begin_capture();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  if (!emulated::stream_of(stream).is_capturing()) return cudaErrorIllegalState;
  const Graph recorded = emulated::stream_of(stream).end_capture();
  *graph = recorded == nullptr ? nullptr : reinterpret_cast<cudaGraph_t>(new Graph(recorded));
  return recorded == nullptr ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = reinterpret_cast<cudaGraphExec_t>(new Graph(*reinterpret_cast<Graph*>(graph)));
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<Graph*>(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete reinterpret_cast<Graph*>(exec);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t handle) {
  emulated::Stream& stream = emulated::stream_of(handle);
  const Graph graph = *reinterpret_cast<Graph*>(exec);
  for (const std::function<void()>& work : graph->work) {
    stream.enqueue_host(work);
  }
  stream.enqueue_host([graph] {});  // it may be destroyed before it has run
  return cudaSuccess;
}
cudaError_t cudaDeviceGetGraphMemAttribute(int, cudaGraphMemAttributeType, void* value) {
  *static_cast<std::uint64_t*>(value) = 0;
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = reinterpret_cast<cudaEvent_t>(new emulated::Event{
      .last = nullptr, .is_waited_for_asleep = (flags & cudaEventBlockingSync) != 0});
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete &event_of(event);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (is_refused_while_recording()) return cudaErrorStreamCaptureUnsupported;
  if (event_of(event).is_of_graph) return cudaErrorCapturedEvent;
  const auto& point = event_of(event).last;
  return point == nullptr || point->has_passed() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  event_of(event).is_of_graph = emulated::stream_of(stream).is_capturing();
  event_of(event).last = emulated::stream_of(stream).record();
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  const auto& first = event_of(start).last;
  const auto& last = event_of(end).last;
  if (first == nullptr || last == nullptr) return cudaErrorInvalidValue;
  if (!first->has_passed() || !last->has_passed()) return cudaErrorNotReady;
  *milliseconds = static_cast<float>((last->microseconds() - first->microseconds()) / 1000.0);
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (is_refused_while_recording()) return cudaErrorStreamCaptureUnsupported;
  if (event_of(event).is_of_graph) return cudaErrorCapturedEvent;
  if (const auto point = event_of(event).last; point != nullptr) {
    wait_for(*point, event_of(event).is_waited_for_asleep);
  }
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
