// Starts a run from weights that were trained before, in any format that is read, instead of from
// random numbers. Each rank reads its own pieces and no others.
#pragma once

#include <filesystem>
#include <vector>

#include "engine/checkpoint/checkpoint_store.h"
#include "engine/config/config.h"
#include "engine/train/engine.h"

namespace dstrain {

/// Collective. Sets the engine's parameters to those of config.initial_weights, in the master's
/// dtype; the optimizer starts afresh. Throws ConfigError or CheckpointError on all ranks if one
/// cannot read its part, with that rank's words.
void start_from_weights(const Config& config, Engine& engine);

/// Whether a checkpoint has no optimizer states (a converted one): its run continues with an
/// optimizer that starts afresh, and counts its updates from 0.
bool holds_parameters_alone(const std::filesystem::path& checkpoint);

/// The tensors of the engine that a checkpoint fills when a run is resumed from it: all, or
/// parameters alone.
std::vector<CheckpointTensor> tensors_to_resume(Engine& engine,
                                                const std::filesystem::path& checkpoint);

}  // namespace dstrain
