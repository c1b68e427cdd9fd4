// RankReport: what every rank reports to all others after a step, in one collective.
#pragma once

#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/train/objective/objective.h"
#include "engine/train/step_metrics.h"
#include "engine/train/time_split.h"

namespace dstrain {

struct RankReport {
  double loss_sum = 0.0;        ///< EngineStep::local_loss_sum
  ObjectiveSums sums{};         ///< EngineStep::local_sums
  int signal = 0;               ///< that asks it to stop; 0: none
  bool save_has_ended = false;  ///< the one under way
  bool trace_asked = false;     ///< somebody wants one of the steps to come
  RankMemory memory;
  RankTime time;                         ///< of the step
  std::optional<DeviceReadings> device;  ///< of a device that is not the host
};

/// The count of f64 numbers that travel for each rank.
inline constexpr std::int64_t kRankReportNumbers =
    23 + kWaitsFor + std::tuple_size_v<ObjectiveSums>;

/// The reports of all ranks, by rank. Collective; waits for all. `stream` is one of host tensors.
std::vector<RankReport> gather_reports(const RankReport& mine, Communicator& world, Stream& stream);

}  // namespace dstrain
