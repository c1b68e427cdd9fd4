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
/// dtype, and draws what they do not hold: adapters, and the head that scores of a model of which
/// they have another; the optimizer starts afresh. Throws ConfigError or CheckpointError on all
/// ranks if one cannot read its part, with that rank's words.
void start_from_weights(const Config& config, Engine& engine);

/// Not collective. Reads the weights beside which a checkpoint was trained into the engine: those
/// of config.initial_weights, where it has some, which must be the same. Throws ConfigError and
/// CheckpointError.
void read_base(const Config& config,
               const BaseWeights& base,
               const std::filesystem::path& checkpoint,
               Engine& engine);

}  // namespace dstrain
