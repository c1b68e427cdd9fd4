#include "kernels/cuda/gpu_trace.h"

#include <array>
#include <atomic>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include <cxxabi.h>
#include <fmt/format.h>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/cupti_functions.h"

namespace dstrain {
namespace {

#if CUDA_VERSION >= 13000
using KernelRecord = CUpti_ActivityKernel10;
#else
using KernelRecord = CUpti_ActivityKernel9;
#endif

constexpr std::size_t kBufferBytes = std::size_t{1} << 20U;
constexpr std::array kKinds = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                               CUPTI_ACTIVITY_KIND_MEMSET};

std::string demangled(const char* name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> plain(
      abi::__cxa_demangle(name, nullptr, nullptr, &status), &std::free);
  return status == 0 && plain != nullptr ? plain.get() : name;
}

std::string_view name_of_copy(std::uint8_t kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD:
      return "Memcpy HtoD";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH:
      return "Memcpy DtoH";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOD:
      return "Memcpy DtoD";
    case CUPTI_ACTIVITY_MEMCPY_KIND_PTOP:
      return "Memcpy PtoP";
    default:
      return "Memcpy";
  }
}

class GpuTrace final : public TraceSource {
 public:
  ~GpuTrace() override {
    if (is_listening_) (void)stop();
  }
  GpuTrace() = default;
  GpuTrace(const GpuTrace&) = delete;
  GpuTrace& operator=(const GpuTrace&) = delete;

  std::optional<std::string> start() override {
    try {
      functions_ = &cupti_functions();
    } catch (const CudaError& error) {
      return fmt::format("kernels of the GPU are left out: {}", error.what());
    }
    {
      const std::lock_guard lock(mutex_);
      streams_.clear();
    }
    listener_.store(this);
    is_listening_ = true;
    CUptiResult result = CUPTI_SUCCESS;
    const auto try_to = [&](auto function, auto... arguments) {
      if (result == CUPTI_SUCCESS) result = function(arguments...);
    };
    if (!is_registered_.exchange(true)) {
      try_to(functions_->register_timestamp, &now);
      try_to(functions_->register_callbacks, &give_buffer, &take_buffer);
    }
    for (const CUpti_ActivityKind kind : kKinds)
      try_to(functions_->enable, kind);
    if (result == CUPTI_SUCCESS) return std::nullopt;
    const char* why = "an unknown error";
    (void)functions_->get_result_string(result, &why);
    (void)stop();
    return fmt::format("kernels of the GPU are left out: CUPTI refuses, {}", why);
  }

  std::vector<TraceTrack> stop() override {
    if (!is_listening_) return {};
    for (const CUpti_ActivityKind kind : kKinds)
      (void)functions_->disable(kind);
    (void)functions_->flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    listener_.store(nullptr);
    is_listening_ = false;
    std::vector<TraceTrack> tracks;
    const std::lock_guard lock(mutex_);
    for (auto& [stream, events] : streams_) {
      tracks.push_back(
          {.thread = fmt::format("GPU, stream {}", stream), .events = std::move(events)});
    }
    streams_.clear();
    return tracks;
  }

 private:
  static std::uint64_t CUPTIAPI now() { return static_cast<std::uint64_t>(TraceLog::now()); }

  static void CUPTIAPI give_buffer(std::uint8_t** buffer,
                                   std::size_t* bytes,
                                   std::size_t* records) {
    *buffer = static_cast<std::uint8_t*>(std::malloc(kBufferBytes));
    *bytes = *buffer == nullptr ? 0 : kBufferBytes;
    *records = 0;  // as many as fit
  }

  static void CUPTIAPI take_buffer(CUcontext /*context*/,
                                   std::uint32_t /*stream*/,
                                   std::uint8_t* buffer,
                                   std::size_t /*bytes*/,
                                   std::size_t valid_bytes) {
    if (GpuTrace* const listener = listener_.load(); listener != nullptr) {
      CUpti_Activity* record = nullptr;
      while (listener->functions_->get_next_record(buffer, valid_bytes, &record) == CUPTI_SUCCESS)
        listener->take(*record);
    }
    std::free(buffer);
  }

  void take(const CUpti_Activity& record) {
    switch (record.kind) {
      case CUPTI_ACTIVITY_KIND_KERNEL:
      case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
        const auto& kernel = reinterpret_cast<const KernelRecord&>(record);
        add(kernel.streamId, name_of_kernel(kernel.name), kernel.start, kernel.end);
        break;
      }
      case CUPTI_ACTIVITY_KIND_MEMCPY: {
        const auto& copy = reinterpret_cast<const CUpti_ActivityMemcpy6&>(record);
        add(copy.streamId, name_of_copy(copy.copyKind), copy.start, copy.end, copy.bytes);
        break;
      }
      case CUPTI_ACTIVITY_KIND_MEMSET: {
        const auto& fill = reinterpret_cast<const CUpti_ActivityMemset4&>(record);
        add(fill.streamId, "Memset", fill.start, fill.end, fill.bytes);
        break;
      }
      default:
        break;
    }
  }

  std::string_view name_of_kernel(const char* name) {
    if (name == nullptr) return "kernel";
    const std::lock_guard lock(mutex_);
    const auto [known, is_new] = names_.try_emplace(name);
    if (is_new) known->second = log()->keep(demangled(name));
    return known->second;
  }

  void add(std::uint32_t stream,
           std::string_view name,
           std::uint64_t start,
           std::uint64_t end,
           std::optional<std::uint64_t> bytes = std::nullopt) {
    if (start == 0 || end < start) return;  // "could not be determined"
    const std::lock_guard lock(mutex_);
    std::vector<TraceEvent>& events = streams_[stream];
    if (events.size() == TraceLog::kMostEvents) return;
    events.push_back({.kind = TraceKind::kKernel,
                      .name = name,
                      .begin_ns = static_cast<std::int64_t>(start),
                      .end_ns = static_cast<std::int64_t>(end),
                      .bytes = bytes ? static_cast<std::int64_t>(*bytes) : TraceEvent::kNone});
  }

  // CUPTI's callbacks are functions without an object.
  static inline std::atomic<GpuTrace*> listener_{nullptr};
  static inline std::atomic<bool> is_registered_{false};

  const CuptiFunctions* functions_ = nullptr;
  bool is_listening_ = false;
  std::mutex mutex_;
  std::map<std::uint32_t, std::vector<TraceEvent>> streams_;
  std::unordered_map<std::string, std::string_view> names_;
};

}  // namespace

std::unique_ptr<TraceSource> make_gpu_trace() {
  return std::make_unique<GpuTrace>();
}

}  // namespace dstrain
