// run_training: one rank's whole life, from a resolved config to the last checkpoint.
#pragma once

#include "engine/comm/rendezvous.h"
#include "engine/config/config_json.h"
#include "engine/train/run_errors.h"
#include "engine/train/train_options.h"

namespace dstrain {

/// Collective over the rendezvous' world. Throws FolderInUse where the run's folder is another
/// run's, FolderGone where it was taken away.
TrainResult run_training(const LoadedConfig& config,
                         Rendezvous& rendezvous,
                         const TrainOptions& options);

}  // namespace dstrain
