// Claims a run's folder for its ranks: rank 0 owns it (RunOwner), and the others hear whether it
// does.
#pragma once

#include <memory>

#include "engine/checkpoint/owner/run_owner.h"
#include "engine/comm/communicator.h"
#include "engine/config/config.h"
#include "engine/train/train_options.h"

namespace dstrain {

/// Collective. Returns, on rank 0 of a run that has steps to train, the owner of
/// training.output_dir; nullptr elsewhere. All ranks throw alike: FolderInUse, or StorageError.
std::unique_ptr<RunOwner> own_folder(const Config& config,
                                     const TrainOptions& options,
                                     Communicator& world);

}  // namespace dstrain
