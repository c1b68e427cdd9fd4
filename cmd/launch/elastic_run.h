// Fits a run to a number of ranks other than it was meant for: its global batch stays, so that it
// learns the same; the number of micro-batches that a rank accumulates changes.
#pragma once

#include <optional>

#include "cmd/run_flags.h"

namespace dstrain {

/// `run`, changed for `world_size` ranks. `whole` is what it resolves to over all hosts: its batch
/// is the one that stays; its micro-batch becomes smaller where it does not divide a rank's share.
/// Returns nothing where the run cannot be divided over that many ranks.
std::optional<RunFlags> fit_to_ranks(const RunFlags& run,
                                     const LoadedConfig& whole,
                                     int whole_size,
                                     int world_size);

}  // namespace dstrain
