#include "engine/train/preference_training.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <spdlog/spdlog.h>

#include "engine/base/amount_text.h"
#include "engine/base/checksum.h"
#include "engine/base/mapped_file.h"
#include "engine/config/config_error.h"
#include "engine/data/token_hashes.h"
#include "engine/train/evaluation.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// What tells one file of tokens from another: its hashes, where it has some.
Json identity_of_data(const std::vector<DataSource>& sources) {
  Json all = Json::array();
  for (const DataSource& source : sources) {
    Json one{{"path", source.prefix}};
    std::error_code error;
    const std::string hashes = hashes_path(source.prefix);
    if (fs::exists(hashes, error)) {
      const MappedFile file = MappedFile::open<ConfigError>(hashes);
      one["hashes"] = checksum_text(checksum(file.bytes()));
    }
    all.push_back(std::move(one));
  }
  return all;
}

/// The files of a folder by name, size and time; enough to notice that others took their place.
Json identity_of_weights(const std::string& folder) {
  Json files = Json::array();
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    if (!entry.is_regular_file(error)) continue;
    files.push_back({{"name", entry.path().filename().string()},
                     {"bytes", entry.file_size(error)},
                     {"changed", entry.last_write_time(error).time_since_epoch().count()}});
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::string identity_of(const Config& config) {
  const DataConfig& data = config.data;
  Json identity{{"training", identity_of_data(data.train)},
                {"validation", identity_of_data(data.validation)},
                {"sequence_length", data.sequence_length},
                {"cuts", data.long_samples == LongSamples::kCut},
                {"weights", config.initial_weights}};
  if (config.initial_weights.empty()) {
    identity["seed"] = config.training.seed;
  } else {
    identity["files"] = identity_of_weights(config.initial_weights);
  }
  return identity.dump();
}

}  // namespace

PreferenceTraining::PreferenceTraining(const Config& config,
                                       Engine& engine,
                                       const BatchLoader& training,
                                       const BatchLoader* validation)
    : config_(config), engine_(engine), training_(training), validation_(validation) {
  if (!config.preferences.needs_reference()) return;
  training_reference_.emplace(training);
  if (validation != nullptr) validation_reference_.emplace(*validation);
}

void PreferenceTraining::find_reference(RunGoal goal,
                                        const std::function<void()>& take_first_weights) {
  if (!config_.preferences.needs_reference()) return;
  const bool is_rank0 = engine_.world().rank() == 0;
  const ReferenceFile file(fs::path(config_.training.output_dir) / "reference.safetensors",
                           is_rank0 ? identity_of(config_) : std::string());
  ReferenceFile::Parts parts{{"training", &*training_reference_}};
  if (validation_reference_) parts["validation"] = &*validation_reference_;
  file.read(parts, engine_.world());

  const BatchPlan& batch = engine_.plan().batch;
  const bool trains = goal == RunGoal::kTrain;
  const std::int64_t epoch = training_.sequences_per_epoch();
  const std::int64_t steps = config_.training.steps;
  // Compared by division: the product may be more than 2^63.
  const bool sees_all = validation_ == nullptr || goal == RunGoal::kEvaluateSources;
  std::vector<DrawnSequence> to_train;
  if (trains) {
    // Of several sources, one may be gone through many times before another has been seen once.
    constexpr std::int64_t kMostEpochs = 1'000'000;
    const std::int64_t most = std::min(epoch, std::int64_t{1} << 40) * kMostEpochs;
    to_train = training_reference_->unknown(
        training_, steps > most / batch.global_samples() ? most : steps * batch.global_samples());
  }
  std::vector<DrawnSequence> to_validate;
  if (validation_ != nullptr) {
    const std::int64_t all = validation_->sequences_per_epoch();
    to_validate = validation_reference_->unknown(
        *validation_,
        sees_all ? all
                 : num_validation_samples(batch, *validation_, config_.training.eval_batches));
  }
  if (to_train.empty() && to_validate.empty()) return;
  take_first_weights();
  if (is_rank0) {
    spdlog::info(
        "reference: how likely the model finds the answers of {} before it is trained",
        counted(static_cast<std::int64_t>(to_train.size() + to_validate.size()), "sequence"));
  }
  if (!to_train.empty()) training_reference_->compute(engine_, training_, to_train);
  if (!to_validate.empty()) validation_reference_->compute(engine_, *validation_, to_validate);
  if (trains && is_rank0) file.write(parts);
}

void PreferenceTraining::set_objective() {
  engine_.set_objective(std::make_unique<PreferenceObjective>(
      engine_.plan(), config_.preferences,
      PreferenceData{.pairs = &training_,
                     .reference = training_reference_ ? &*training_reference_ : nullptr},
      PreferenceData{.pairs = validation_,
                     .reference = validation_reference_ ? &*validation_reference_ : nullptr}));
}

void PreferenceTraining::set_objective_of_source(const BatchLoader& loader, int source) {
  engine_.set_objective(std::make_unique<PreferenceObjective>(
      engine_.plan(), config_.preferences, PreferenceData{},
      PreferenceData{.pairs = &loader,
                     .reference = validation_reference_ ? &*validation_reference_ : nullptr,
                     .first_source = source}));
}

}  // namespace dstrain
