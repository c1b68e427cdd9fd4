// CommittedCheckpoint: the newest whole checkpoint of a run, as the launcher sees it between two
// attempts. It tells where the next one begins, and whether the last one got anywhere.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "engine/config/config.h"

namespace dstrain {

struct CommittedCheckpoint {
  std::filesystem::path path;
  std::int64_t step = 0;
  /// Tells a checkpoint from an older one of the same step.
  std::filesystem::file_time_type written{};

  bool operator==(const CommittedCheckpoint&) const = default;
};

/// The newest whole checkpoint; none if the run's folder, which must be on a file system that this
/// host sees, has no whole one.
std::optional<CommittedCheckpoint> committed_checkpoint(const Config& config);

}  // namespace dstrain
