#include "engine/train/resume.h"

#include <cstring>
#include <filesystem>
#include <set>
#include <string>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "engine/checkpoint/agreement.h"
#include "engine/checkpoint/recognise_format.h"
#include "engine/config/config_error.h"
#include "engine/train/initial_weights.h"
#include "engine/train/load_states.h"
#include "engine/train/resume_changes.h"
#include "engine/train/training_state.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

// The ways in which a rank's attempt can end.
constexpr std::int32_t kDamaged = 1;
constexpr std::int32_t kUnfit = 2;
constexpr std::int32_t kRefused = 3;

void refuse_to_start_anew(const CheckpointStore& checkpoints) {
  if (const auto newest = checkpoints.newest_name()) {
    throw ConfigError(fmt::format(
        "checkpoint.resume: \"never\" would start over in {}, which holds an earlier run's "
        "checkpoints (the newest is {}), and remove them as it saves; give training.output_dir "
        "another folder, move that one away, or set checkpoint.resume to \"auto\"",
        newest->parent_path().string(), newest->filename().string()));
  }
}

/// Rank 0 chooses, so that no two ranks can resume from different checkpoints.
std::optional<fs::path> choose(const CheckpointConfig& config,
                               const CheckpointStore& checkpoints,
                               Communicator& world) {
  std::string chosen;
  Outcome mine;
  if (world.rank() == 0) {
    try {
      switch (config.resume) {
        case ResumeMode::kAuto:
          chosen = checkpoints.latest().value_or("").string();
          break;
        case ResumeMode::kNever:
          refuse_to_start_anew(checkpoints);
          break;
        case ResumeMode::kPath:
          refuse_to_resume_deepspeed(config.resume_path);
          chosen = config.resume_path;
          break;
      }
    } catch (const CheckpointError& error) {
      mine = {kUnfit, error.what()};
    } catch (const ConfigError& error) {
      mine = {kRefused, error.what()};
    }
  }
  const Outcome failure = first_failure(std::move(mine), world);
  if (failure.code == kRefused) {
    throw ConfigError(failure.text);
  }
  if (failure.code == kUnfit) {
    throw CheckpointError(failure.text);
  }
  chosen = broadcast_text(chosen, 0, world);
  return chosen.empty() ? std::nullopt : std::optional<fs::path>(chosen);
}

/// A checkpoint of another model must not be resumed in part. `config` names what all ranks hold
/// together.
void refuse_foreign_tensors(const RunPlan& plan, const fs::path& checkpoint) {
  const std::set<std::string> known = parameter_names(plan);
  for (const auto& entry : CheckpointStore::contents(checkpoint)) {
    const std::string_view tensor = entry.tensor;
    const bool is_factor = tensor.starts_with(kFactorPrefix);
    const std::string parameter(is_factor ? tensor.substr(std::strlen(kFactorPrefix)) : tensor);
    if (!known.contains(parameter)) {
      throw CheckpointError(fmt::format(
          "{} holds {}, which this config's model does not have: give training.output_dir another "
          "folder, or restore the model that was trained",
          checkpoint.string(), entry.tensor));
    }
  }
}

/// Rank 0 decides: its view of the files is the one that is broadcast.
void refuse_conflict(const Config& config, const ResumedFrom* from, TokenizerMismatch mismatch) {
  const auto conflict = tokenizer_conflict(config, from);
  if (conflict && mismatch == TokenizerMismatch::kRefuse) {
    throw ConfigError(*conflict);
  }
  if (conflict) {
    spdlog::warn("{}", *conflict);
  }
}

}  // namespace

bool is_done(const Config& config, const TrainingState& state) {
  return state.step >= config.training.steps;
}

std::string describe_done(const Config& config, const ResumedFrom& from) {
  const std::int64_t step = from.training.step;
  const std::int64_t steps = config.training.steps;
  return fmt::format("nothing to do: {} has {}; to train further: --set training.steps={}",
                     from.path.string(),
                     step == steps ? fmt::format("{} of {} steps", step, steps)
                                   : fmt::format("{} steps, and training.steps is {}", step, steps),
                     2 * step);
}

std::optional<ResumedFrom> checkpoint_to_resume(const Config& config, CheckpointStore::Look look) {
  try {
    std::optional<fs::path> path;
    switch (config.checkpoint.resume) {
      case ResumeMode::kAuto:
        path = CheckpointStore(fs::path(config.training.output_dir) / "checkpoints").latest(look);
        break;
      case ResumeMode::kNever:
        break;
      case ResumeMode::kPath:
        path = config.checkpoint.resume_path;
        break;
    }
    if (path) {
      return ResumedFrom{*path, CheckpointStore::training(*path)};
    }
  } catch (const CheckpointError&) {
  }
  return std::nullopt;
}

std::vector<std::string> describe_resume(const std::string& beginning,
                                         const ResumedFrom& from,
                                         const LoadedConfig& now) {
  std::vector<std::string> lines = describe_changes(beginning, from.training, now);
  if (from.training.base) {
    lines.push_back(fmt::format("what is not trained is read from the weights in {}",
                                now.config.initial_weights.empty() ? from.training.base->path
                                                                   : now.config.initial_weights));
  } else if (const std::string& start = now.config.initial_weights; !start.empty()) {
    lines.push_back(fmt::format(
        "the weights in {} (model.initial_weights) are not read: the run resumes from its "
        "checkpoint",
        start));
  }
  return lines;
}

void agree_on_tokenizer(const Config& config, TokenizerMismatch mismatch, Communicator& world) {
  Outcome mine;
  try {
    if (world.rank() == 0) {
      refuse_conflict(config, nullptr, mismatch);
    }
  } catch (const ConfigError& error) {
    mine = {kRefused, error.what()};
  }
  if (const Outcome failure = first_failure(std::move(mine), world); failure.code != 0) {
    throw ConfigError(failure.text);
  }
}

std::optional<ResumedFrom> resume_run(const LoadedConfig& loaded,
                                      Engine& engine,
                                      CheckpointStore& checkpoints,
                                      TokenizerMismatch mismatch,
                                      RunGoal goal) {
  const Config& config = loaded.config;
  const bool trains = goal == RunGoal::kTrain;
  Communicator& world = engine.world();
  while (const auto path = choose(config.checkpoint, checkpoints, world)) {
    ResumedFrom from{.path = *path, .training = {}};
    Outcome mine;
    try {
      refuse_foreign_tensors(engine.plan(), *path);
      from.training = CheckpointStore::training(*path);
      if (world.rank() == 0) {
        refuse_conflict(config, &from, mismatch);
      }
      if (!trains || !is_done(config, from.training)) {
        if (from.training.base) read_base(config, *from.training.base, *path, engine);
        from.training = load_states(engine, *path);
        if (holds_parameters_alone(*path)) {
          from.training.optimizer_step = 0;
        }
      }
    } catch (const DamagedCheckpoint& error) {
      mine = {kDamaged, error.what()};
    } catch (const CheckpointError& error) {
      mine = {kUnfit, error.what()};
    } catch (const ConfigError& error) {
      mine = {kRefused, error.what()};
    }
    const Outcome failure = first_failure(std::move(mine), world);
    if (failure.code == 0) {
      if (trains && is_done(config, from.training)) {
        return from;
      }
      engine.refresh_parameters();
      if (world.rank() == 0) {
        for (const std::string& line :
             describe_resume(fmt::format("{} at step {} from {}", trains ? "resumed" : "evaluating",
                                         from.training.step, path->string()),
                             from, loaded)) {
          spdlog::info("{}", line);
        }
      }
      return from;
    }
    if (failure.code == kRefused) {
      throw ConfigError(failure.text);
    }
    if (failure.code != kDamaged || config.checkpoint.resume != ResumeMode::kAuto) {
      throw CheckpointError(failure.text);
    }
    if (world.rank() == 0) {
      spdlog::warn("{} is skipped because it is damaged: {}", path->string(), failure.text);
    }
    checkpoints.pass_over(*path, failure.text);
  }
  return std::nullopt;
}

}  // namespace dstrain
