// MemoryWatch: measures how much a rank holds of the memory that it computes in, now and at its
// peak. The kernel keeps no peak of a process's own memory, so it is sampled often.
#pragma once

#include <cstdint>

#include "engine/train/step_metrics.h"
#include "kernels/core/device.h"

namespace dstrain {

class MemoryWatch {
 public:
  /// `planned_bytes` is the arena, `overhead_bytes` what is expected beside it. `device` outlives
  /// it.
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
