// A libnvidia-ml.so.1 that knows one GPU, for the tests: opened as the driver's is.
#include <cstdlib>
#include <cstring>

#include <unistd.h>

namespace {

struct Utilization {
  unsigned gpu;
  unsigned memory;
};
struct ProcessInfo {
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance;
  unsigned compute_instance;
};
static_assert(sizeof(ProcessInfo) == 24);
struct Memory {
  unsigned long long total_bytes;
  unsigned long long free_bytes;
  unsigned long long used_bytes;
};

int some_device = 0;
int users = 0;

bool is_asked_well(void* device) {
  return users > 0 && device == &some_device;
}

}  // namespace

extern "C" {

int nvmlInit_v2() {
  ++users;
  return 0;
}
int nvmlShutdown() {
  --users;
  return 0;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, void** device) {
  if (std::strcmp(bus_id, "0000:3b:00.0") != 0) return 6;  // NVML_ERROR_NOT_FOUND
  *device = &some_device;
  return 0;
}
int nvmlDeviceGetClockInfo(void* device, int which, unsigned* mhz) {
  if (!is_asked_well(device) || (which != 1 && which != 2)) return 2;
  *mhz = which == 1 ? 1980 : 2619;
  return 0;
}
int nvmlDeviceGetPowerUsage(void* device, unsigned* milliwatts) {
  if (!is_asked_well(device)) return 2;
  *milliwatts = 650'500;
  return 0;
}
int nvmlDeviceGetTemperature(void* device, int sensor, unsigned* celsius) {
  if (!is_asked_well(device) || sensor != 0) return 2;
  *celsius = 61;
  return 0;
}
int nvmlDeviceGetUtilizationRates(void*, Utilization*) {
  return 3;  // NVML_ERROR_NOT_SUPPORTED
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void* device, unsigned long long* reasons) {
  if (!is_asked_well(device)) return 2;
  *reasons = 0x8 | 0x40 | 0x1;  // hardware slowdown, thermal; idle
  return 0;
}
int nvmlDeviceGetMemoryInfo(void* device, Memory* memory) {
  if (!is_asked_well(device)) return 2;
  *memory = {
      .total_bytes = 85'520'809'984, .free_bytes = 80'000'000'000, .used_bytes = 5'520'809'984};
  return 0;
}
/// More processes than anybody asks for at first; the last is the caller.
int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count, ProcessInfo* infos) {
  constexpr unsigned kProcesses = 40;
  if (!is_asked_well(device)) return 2;
  if (*count < kProcesses) {
    *count = kProcesses;
    return 7;  // NVML_ERROR_INSUFFICIENT_SIZE
  }
  for (unsigned i = 0; i < kProcesses; ++i) {
    infos[i] = {
        .pid = 4'000'000'000U + i, .used_bytes = 1, .gpu_instance = 0, .compute_instance = 0};
  }
  infos[kProcesses - 1].pid = static_cast<unsigned>(getpid());
  infos[kProcesses - 1].used_bytes = 12'345'678'901;
  *count = kProcesses;
  return 0;
}

}  // extern "C"
