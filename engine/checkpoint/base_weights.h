// The weights beside which a run's adapters are trained, where its checkpoints hold what is trained
// and not them: what tells them from others, and where they are found again.
#pragma once

#include <filesystem>
#include <string_view>

#include "engine/checkpoint/checkpoint_contents.h"

namespace dstrain {

/// Whether the weights at `path` stay where they are: those of a run do not, whose later saves
/// remove its older checkpoints. Weights that are not there, or not yet, count as such that stay.
bool stay_in_place(const std::filesystem::path& path);

/// Those at `path`. Reads at most 2 MiB of each file. Throws as recognise_format does, and
/// CheckpointError where a file cannot be read.
BaseWeights identify_weights(const std::filesystem::path& path);

/// Where the weights lie beside which `checkpoint` was trained: at `place`, which `setting` gives
/// ("--base", "model.initial_weights", or "": nothing does), or else where they lay then. Throws
/// CheckpointError where there are none, or others.
std::filesystem::path find_base(const BaseWeights& base,
                                const std::filesystem::path& checkpoint,
                                const std::filesystem::path& place,
                                std::string_view setting);

}  // namespace dstrain
