// A folder belongs to one run at a time. The launcher owns it before it starts anything, and
// between two attempts; during an attempt its rank 0 does.
#pragma once

#include <memory>
#include <string>

#include "cmd/launch/launch_flags.h"
#include "engine/checkpoint/owner/run_owner.h"
#include "engine/config/config.h"

namespace dstrain {

/// Returns nullptr where the run writes nothing, or the folder is not on this machine, as far as
/// one can tell: then rank 0 alone decides. `job` is the same in all attempts. Throws FolderInUse,
/// StorageError, or FolderGone where the attempt before had a folder that is no longer there.
std::unique_ptr<RunOwner> claim_folder(const LaunchFlags& flags,
                                       const Config& config,
                                       const std::string& job,
                                       int restart);

}  // namespace dstrain
