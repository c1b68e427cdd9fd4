// NVML, the driver's library that nvidia-smi uses too, opened at run time: clocks, power and
// temperature of one GPU, and how much of its memory this process holds, contexts and libraries
// included. The toolkit may lack its header, and its functions keep their form between versions, so
// those that are used are declared in nvml.cpp.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "kernels/core/device.h"

namespace dstrain {

/// One GPU as NVML sees it. Where the library is missing or does not know the GPU, the readings are
/// empty: a run needs none of them.
class Nvml {
 public:
  /// `pci_bus_id` as cudaDeviceGetPCIBusId gives it: "0000:3b:00.0".
  explicit Nvml(const std::string& pci_bus_id);
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;
  ~Nvml();

  /// The readings of this moment, which take some hundred microseconds; to be called from one
  /// thread at a time. used_bytes is 0 where the driver does not list this process, which happens
  /// in containers with their own process ids.
  [[nodiscard]] DeviceReadings read() const;
  /// The memory of the whole GPU, whoever holds it.
  [[nodiscard]] std::optional<MemoryInfo> memory() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;  // nullptr: nothing to ask
};

}  // namespace dstrain
