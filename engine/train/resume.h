// Where a run begins: at step 0, or at a checkpoint that every rank can use; and what it says of
// that.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint_store.h"
#include "engine/config/config_json.h"
#include "engine/train/engine.h"
#include "engine/train/run_goal.h"
#include "engine/train/tokenizer_agreement.h"

namespace dstrain {

/// What becomes of data, weights and tokenizer that do not belong together.
enum class TokenizerMismatch : std::uint8_t { kRefuse, kWarn };

/// Has the checkpoint all steps that the run is to have, so that there is nothing to do?
bool is_done(const Config& config, const TrainingState& state);
/// "nothing to do: PATH has 400 of 400 steps; …"
std::string describe_done(const Config& config, const ResumedFrom& from);

/// Not collective: the checkpoint that a run of this config would go on from, as far as this
/// machine sees; none if there is none, or none that is whole, of which the ranks say more.
std::optional<ResumedFrom> checkpoint_to_resume(
    const Config& config, CheckpointStore::Look look = CheckpointStore::Look::kAndWarn);
/// What there is to say of a run that goes on from `from`: what has changed since, and start
/// weights that are not read. `beginning`: "resumed at step 400 from PATH".
std::vector<std::string> describe_resume(const std::string& beginning,
                                         const ResumedFrom& from,
                                         const LoadedConfig& now);

/// Collective. Throws ConfigError on all ranks where rank 0 sees a tokenizer_conflict.
void agree_on_tokenizer(const Config& config, TokenizerMismatch mismatch, Communicator& world);

/// Collective. Loads the engine's parameters and optimizer state as checkpoint.resume says; none
/// where there is nothing to resume.
///   auto   the newest whole one. Where reading shows damage on any rank, all pass it over for the
///          next newest, and the log says which and why; an error if there is none left
///   never  refused where the folder holds checkpoints, which the new run's saves would remove
///   path   that one; damage is an error
/// One that has all steps is not loaded to train. All ranks return alike or throw alike:
/// CheckpointError, or ConfigError for "never" and for a tokenizer_conflict.
std::optional<ResumedFrom> resume_run(const LoadedConfig& loaded,
                                      Engine& engine,
                                      CheckpointStore& checkpoints,
                                      TokenizerMismatch mismatch,
                                      RunGoal goal = RunGoal::kTrain);

}  // namespace dstrain
