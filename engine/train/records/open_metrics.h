// OpenMetrics: the curves of a run as Prometheus reads them, in its older text format as well.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/comm/activity.h"
#include "engine/train/step_metrics.h"

namespace dstrain {

/// What there is to say of a run between two steps.
struct MetricsSnapshot {
  std::string run;  ///< name of its folder, the label of every value
  RunPhase phase = RunPhase::kStarting;
  std::int64_t step = 0;
  std::int64_t tokens = 0;
  std::chrono::system_clock::time_point step_end{};  ///< before the first step: 1970
  std::vector<std::optional<double>> values;         ///< newest of curves(); empty before any step
};

enum class MetricsText : std::uint8_t { kOpenMetrics, kPrometheus };

/// The kind that the Accept header of a request asks for, and the type of an answer.
MetricsText accepted_text(const std::string& accept);
const char* content_type(MetricsText text);

std::string to_text(const MetricsSnapshot& snapshot, MetricsText text);

}  // namespace dstrain
