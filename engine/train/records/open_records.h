// Opens all that a run writes about its steps: metrics.jsonl always, for other programs what its
// config says.
#pragma once

#include <memory>
#include <vector>

#include "engine/config/loaded_config.h"
#include "engine/train/records/step_records.h"

namespace dstrain {

/// For rank 0 of a run that continues after `resumed` and owns its folder. Throws StorageError, and
/// ConfigError where another run's files are where these would be.
std::vector<std::unique_ptr<StepRecords>> open_records(const LoadedConfig& loaded,
                                                       const RunPosition& resumed);

}  // namespace dstrain
