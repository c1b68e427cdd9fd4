#include "engine/train/step_metrics.h"

#include <algorithm>

namespace dstrain {

DeviceSummary summarize(const std::vector<DeviceReadings>& by_rank) {
  DeviceSummary summary;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    const DeviceReadings& device = by_rank[rank];
    std::optional<double>& mhz = summary.lowest_compute_mhz;
    if (device.compute_mhz && (!mhz || *device.compute_mhz < *mhz)) {
      mhz = device.compute_mhz;
      summary.slowest_rank = rank;
    }
    if (device.watts) summary.total_watts = summary.total_watts.value_or(0.0) + *device.watts;
    std::optional<double>& celsius = summary.highest_celsius;
    if (device.celsius) celsius = std::max(celsius.value_or(*device.celsius), *device.celsius);
    const Slowdown& own = device.slowdown;
    Slowdown& reasons = summary.slowed_by;
    summary.slowed_ranks += own.power || own.temperature || own.hardware ? 1 : 0;
    reasons.power = reasons.power || own.power;
    reasons.temperature = reasons.temperature || own.temperature;
    reasons.hardware = reasons.hardware || own.hardware;
  }
  return summary;
}

std::size_t fullest_rank(const std::vector<RankMemory>& by_rank) {
  const auto fullest = std::max_element(
      by_rank.begin(), by_rank.end(),
      [](const RankMemory& a, const RankMemory& b) { return a.peak_bytes < b.peak_bytes; });
  return static_cast<std::size_t>(fullest - by_rank.begin());
}

}  // namespace dstrain
