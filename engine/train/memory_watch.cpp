#include "engine/train/memory_watch.h"

#include <algorithm>
#include <optional>

#include "engine/train/resident_memory.h"

namespace dstrain {

RankMemory MemoryWatch::look() {
  const ResidentMemory resident = resident_memory();
  const std::optional<DeviceReadings> readings = device_.readings();
  const std::int64_t now = readings ? readings->used_bytes : resident.own_bytes;
  peak_bytes_ = std::max({peak_bytes_, now, readings ? readings->peak_bytes : 0});
  return {.planned_bytes = planned_bytes_,
          .overhead_bytes = overhead_bytes_,
          .measured_bytes = now,
          .peak_bytes = peak_bytes_,
          .resident_peak_bytes = resident.peak_bytes};
}

}  // namespace dstrain
