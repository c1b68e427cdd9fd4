// Decides where a run begins: at step 0, or at a checkpoint that every rank can use; and describes
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

/// What to do about data, weights and tokenizer that do not belong together.
enum class TokenizerMismatch : std::uint8_t { kRefuse, kWarn };

/// Whether the checkpoint has all steps that the run should have, so that there is nothing to do.
bool is_done(const Config& config, const TrainingState& state);
/// "nothing to do: PATH has 400 of 400 steps; …"
std::string describe_done(const Config& config, const ResumedFrom& from);

/// Not collective. Returns the checkpoint that a run of this config would resume from, as far as
/// this machine sees; nothing if there is none, or none that is whole, about which the ranks say
/// more.
std::optional<ResumedFrom> checkpoint_to_resume(
    const Config& config, CheckpointStore::Look look = CheckpointStore::Look::kAndWarn);
/// The lines to log about a run that resumes from `from`: what has changed since, and start weights
/// that are not read. `beginning`: "resumed at step 400 from PATH".
std::vector<std::string> describe_resume(const std::string& beginning,
                                         const ResumedFrom& from,
                                         const LoadedConfig& now);

/// Collective. Throws ConfigError on all ranks where rank 0 sees a tokenizer_conflict.
void agree_on_tokenizer(const Config& config, TokenizerMismatch mismatch, Communicator& world);

/// Collective. Loads the engine's parameters and optimizer state as checkpoint.resume says; returns
/// nothing where there is nothing to resume.
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
