#include "engine/train/resume.h"

#include <filesystem>
#include <set>
#include <string>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "engine/checkpoint/agreement.h"
#include "engine/spec/config_error.h"
#include "engine/train/initial_weights.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

// How a rank's attempt ended.
constexpr std::int32_t kDamaged = 1;
constexpr std::int32_t kUnfit = 2;
constexpr std::int32_t kRefused = 3;

void refuse_to_start_anew(const CheckpointStore& checkpoints) {
  if (const auto newest = checkpoints.newest_name()) {
    throw ConfigError(fmt::format(
        "checkpoint.resume: \"never\" would start anew in {}, which holds an earlier run's "
        "checkpoints (the newest is {}), and remove them as it saves; give training.output_dir "
        "another folder, move that one away, or set checkpoint.resume to \"auto\"",
        newest->parent_path().string(), newest->filename().string()));
  }
}

/// Rank 0 chooses, so that no two ranks can resume from different ones.
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
void refuse_foreign_tensors(const Config& config, const fs::path& checkpoint) {
  const std::set<std::string> known = parameter_names(config);
  for (const auto& entry : CheckpointStore::contents(checkpoint)) {
    if (!known.contains(entry.tensor)) {
      throw CheckpointError(fmt::format(
          "{} holds {}, which this config's model does not have: give training.output_dir another "
          "folder, or restore the model that was trained",
          checkpoint.string(), entry.tensor));
    }
  }
}

}  // namespace

std::optional<TrainingState> resume_run(const Config& config,
                                        Engine& engine,
                                        CheckpointStore& checkpoints) {
  Communicator& world = engine.world();
  while (const auto from = choose(config.checkpoint, checkpoints, world)) {
    TrainingState state;
    Outcome mine;
    try {
      refuse_foreign_tensors(config, *from);
      state = CheckpointStore::load(*from, tensors_to_resume(engine, *from));
    } catch (const DamagedCheckpoint& error) {
      mine = {kDamaged, error.what()};
    } catch (const CheckpointError& error) {
      mine = {kUnfit, error.what()};
    }
    const Outcome failure = first_failure(std::move(mine), world);
    if (failure.code == 0) {
      engine.refresh_parameters();
      if (world.rank() == 0) {
        spdlog::info("resumed at step {} from {}", state.step, from->string());
      }
      return state;
    }
    if (failure.code != kDamaged || config.checkpoint.resume != ResumeMode::kAuto) {
      throw CheckpointError(failure.text);
    }
    if (world.rank() == 0) {
      spdlog::warn("{} is skipped, it is damaged: {}", from->string(), failure.text);
    }
    checkpoints.pass_over(*from, failure.text);
  }
  return std::nullopt;
}

}  // namespace dstrain
