#include "kernels/cuda/nvml.h"

#include <cstdint>
#include <vector>

#include <dlfcn.h>
#include <unistd.h>

namespace dstrain {
namespace {

// As in NVML's reference; every call answers 0 for success.
using NvmlDevice = void*;
constexpr int kInsufficientSize = 7;
enum Clock : int { kSmClock = 1, kMemoryClock = 2 };
constexpr int kGpuTemperature = 0;
struct Utilization {
  unsigned gpu;  // percent of the last sample period in which a kernel ran
  unsigned memory;
};
struct ProcessInfo {
  unsigned pid;
  unsigned long long used_bytes;  // all ones: unknown
  unsigned gpu_instance;
  unsigned compute_instance;
};
struct Memory {
  unsigned long long total_bytes;
  unsigned long long free_bytes;
  unsigned long long used_bytes;
};
// nvmlDeviceGetCurrentClocksThrottleReasons
constexpr unsigned long long kSoftwarePowerCap = 0x4;
constexpr unsigned long long kHardwareSlowdown = 0x8;
constexpr unsigned long long kSoftwareThermal = 0x20;
constexpr unsigned long long kHardwareThermal = 0x40;
constexpr unsigned long long kHardwarePowerBrake = 0x80;

struct Functions {
  int (*init)();
  int (*shutdown)();
  int (*handle_by_bus_id)(const char*, NvmlDevice*);
  int (*clock)(NvmlDevice, int, unsigned*);
  int (*power)(NvmlDevice, unsigned*);
  int (*temperature)(NvmlDevice, int, unsigned*);
  int (*utilization)(NvmlDevice, Utilization*);
  int (*slowdown)(NvmlDevice, unsigned long long*);
  int (*processes)(NvmlDevice, unsigned*, ProcessInfo*);
  int (*memory)(NvmlDevice, Memory*);
};

template <typename Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

bool find_all(void* library, Functions& nvml) {
  return find(library, "nvmlInit_v2", nvml.init) && find(library, "nvmlShutdown", nvml.shutdown) &&
         find(library, "nvmlDeviceGetHandleByPciBusId_v2", nvml.handle_by_bus_id) &&
         find(library, "nvmlDeviceGetClockInfo", nvml.clock) &&
         find(library, "nvmlDeviceGetPowerUsage", nvml.power) &&
         find(library, "nvmlDeviceGetTemperature", nvml.temperature) &&
         find(library, "nvmlDeviceGetUtilizationRates", nvml.utilization) &&
         find(library, "nvmlDeviceGetCurrentClocksThrottleReasons", nvml.slowdown) &&
         find(library, "nvmlDeviceGetComputeRunningProcesses_v3", nvml.processes) &&
         find(library, "nvmlDeviceGetMemoryInfo", nvml.memory);
}

}  // namespace

struct Nvml::Impl {
  void* library = nullptr;
  Functions nvml{};
  NvmlDevice device = nullptr;
  bool is_open = false;

  explicit Impl(const std::string& pci_bus_id)
      : library(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
    if (library == nullptr || !find_all(library, nvml) || nvml.init() != 0) return;
    is_open = nvml.handle_by_bus_id(pci_bus_id.c_str(), &device) == 0;
    if (!is_open) (void)nvml.shutdown();
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    if (is_open) (void)nvml.shutdown();
    if (library != nullptr) (void)dlclose(library);
  }

  [[nodiscard]] std::optional<double> clock(Clock which) const {
    unsigned mhz = 0;
    return nvml.clock(device, which, &mhz) == 0 ? std::optional<double>(mhz) : std::nullopt;
  }
  [[nodiscard]] std::int64_t bytes_of_this_process() const;
  [[nodiscard]] Slowdown slowdown() const;
};

std::int64_t Nvml::Impl::bytes_of_this_process() const {
  std::vector<ProcessInfo> processes(16);
  auto count = static_cast<unsigned>(processes.size());
  int status = nvml.processes(device, &count, processes.data());
  if (status == kInsufficientSize) {
    processes.resize(count + 16);
    count = static_cast<unsigned>(processes.size());
    status = nvml.processes(device, &count, processes.data());
  }
  if (status != 0) return 0;
  processes.resize(count);
  for (const ProcessInfo& process : processes) {
    if (process.pid == static_cast<unsigned>(getpid()) && process.used_bytes != ~0ULL) {
      return static_cast<std::int64_t>(process.used_bytes);
    }
  }
  return 0;
}

Slowdown Nvml::Impl::slowdown() const {
  unsigned long long reasons = 0;
  if (nvml.slowdown(device, &reasons) != 0) return {};
  return {.power = (reasons & (kSoftwarePowerCap | kHardwarePowerBrake)) != 0,
          .temperature = (reasons & (kSoftwareThermal | kHardwareThermal)) != 0,
          .hardware = (reasons & kHardwareSlowdown) != 0};
}

Nvml::Nvml(const std::string& pci_bus_id) : impl_(std::make_unique<Impl>(pci_bus_id)) {
  if (!impl_->is_open) impl_.reset();
}

Nvml::~Nvml() = default;

std::optional<MemoryInfo> Nvml::memory() const {
  Memory memory{};
  if (impl_ == nullptr || impl_->nvml.memory(impl_->device, &memory) != 0) return std::nullopt;
  return MemoryInfo{.total_bytes = static_cast<std::int64_t>(memory.total_bytes),
                    .available_bytes = static_cast<std::int64_t>(memory.free_bytes)};
}

DeviceReadings Nvml::read() const {
  if (impl_ == nullptr) return {};
  const Functions& nvml = impl_->nvml;
  DeviceReadings readings{.used_bytes = impl_->bytes_of_this_process(),
                          .compute_mhz = impl_->clock(kSmClock),
                          .memory_mhz = impl_->clock(kMemoryClock),
                          .slowdown = impl_->slowdown()};
  unsigned value = 0;
  if (nvml.power(impl_->device, &value) == 0) readings.watts = value / 1000.0;
  if (nvml.temperature(impl_->device, kGpuTemperature, &value) == 0) readings.celsius = value;
  if (Utilization busy{}; nvml.utilization(impl_->device, &busy) == 0) {
    readings.utilization = busy.gpu / 100.0;
  }
  return readings;
}

}  // namespace dstrain
