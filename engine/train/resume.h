// Where a run begins: at step 0, or at a checkpoint that every rank can use.
#pragma once

#include <optional>

#include "engine/checkpoint/checkpoint_store.h"
#include "engine/train/engine.h"

namespace dstrain {

/// Collective. Loads the engine's parameters and optimizer state as checkpoint.resume says; none
/// where there is nothing to resume.
///   auto   the newest whole one. Where reading shows damage on any rank, all pass it over for the
///          next newest, and the log says which and why; an error if there is none left
///   never  refused where the folder holds checkpoints, which the new run's saves would remove
///   path   that one; damage is an error
/// All ranks return alike or throw alike: CheckpointError, or ConfigError for "never".
std::optional<TrainingState> resume_run(const Config& config,
                                        Engine& engine,
                                        CheckpointStore& checkpoints);

}  // namespace dstrain
