// RankObservation: one running rank and what it said it was doing, for those who watch a job.
#pragma once

#include <optional>
#include <string>

#include <fmt/format.h>

#include "launcher/process/job.h"
#include "launcher/supervision/rank_status.h"

namespace dstrain::launcher {

struct RankObservation {
  const ProcessSpec* spec = nullptr;
  long pid = 0;
  std::optional<RankStatus> status{};  ///< nothing: it has not said anything yet
};

/// "rank 3 (local rank 1) on w1, pid 4711".
inline std::string name_of(const ProcessSpec& spec, long pid) {
  return fmt::format("rank {} (local rank {}) on {}, pid {}", spec.rank, spec.local_rank, spec.host,
                     pid);
}

}  // namespace dstrain::launcher
