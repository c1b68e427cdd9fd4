// Where a run's first parameters come from if not from random numbers: weights that somebody
// trained before, in any format that is read. Each rank reads its own pieces and no others.
#pragma once

#include <filesystem>
#include <vector>

#include "engine/checkpoint/checkpoint_store.h"
#include "engine/config/config.h"
#include "engine/train/engine.h"

namespace dstrain {

/// Collective. The engine's parameters become those of config.initial_weights, in the master's
/// dtype; the optimizer starts anew. Throws ConfigError or CheckpointError on all ranks if one
/// cannot read its part, with that rank's words.
void start_from_weights(const Config& config, Engine& engine);

/// Whether a checkpoint has no optimizer's states (a converted one): its run goes on with an
/// optimizer that starts anew, and counts its updates from 0.
bool holds_parameters_alone(const std::filesystem::path& checkpoint);

/// What a checkpoint fills of the engine when a run is resumed from it: everything, or parameters
/// alone.
std::vector<CheckpointTensor> tensors_to_resume(Engine& engine,
                                                const std::filesystem::path& checkpoint);

}  // namespace dstrain
