// Loads a checkpoint into an engine, whichever optimizer and layout saved it: also states that
// every data-parallel rank has of its own.
#pragma once

#include <filesystem>

#include "engine/checkpoint/checkpoint_contents.h"
#include "engine/train/engine.h"

namespace dstrain {

/// Whether a checkpoint has no optimizer states (a converted one): its run continues with an
/// optimizer that starts afresh, and counts its updates from 0.
bool holds_parameters_alone(const std::filesystem::path& checkpoint);

/// Fills everything that this rank updates: all states, or parameters alone; but what is not
/// trained and lies in the weights beside which the checkpoint was trained (TrainingState::base),
/// which read_base reads before. Not collective. Throws as CheckpointStore::load does.
///
/// Of a state that each of n ranks has of its own ("worker_error.0", …), as many ranks get their
/// own back, bit for bit; any other number of ranks get the mean each, so that what all ranks
/// together still owe to a mean of momenta or gradients is what it was; a rank alone also takes
/// over what servers owe. Where there is none, it starts at 0, or a momentum at the one that all
/// ranks shared. What a run has only from some update on is as if it began there, where its config
/// moves that update behind or before the checkpoint. PowerSGD's factors stay as they were drawn
/// where the checkpoint has none of their shape.
TrainingState load_states(Engine& engine, const std::filesystem::path& checkpoint);

}  // namespace dstrain
