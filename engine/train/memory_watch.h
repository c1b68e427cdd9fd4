// MemoryWatch: how much of the memory that it computes in a rank holds, now and at its most. The
// kernel keeps no peak of a process's own memory, so it is looked at often.
#pragma once

#include <cstdint>

#include "engine/train/metrics.h"
#include "kernels/core/device.h"

namespace dstrain {

class MemoryWatch {
 public:
  /// `planned_bytes`: of the arena; `overhead_bytes`: expected beside it. `device` outlives it.
  MemoryWatch(Device& device, std::int64_t planned_bytes, std::int64_t overhead_bytes)
      : device_(device), planned_bytes_(planned_bytes), overhead_bytes_(overhead_bytes) {}

  /// Looks at the process's memory, or at its GPU's.
  RankMemory look();

 private:
  Device& device_;
  std::int64_t planned_bytes_;
  std::int64_t overhead_bytes_;
  std::int64_t peak_bytes_ = 0;
};

}  // namespace dstrain
