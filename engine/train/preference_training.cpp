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

/// The answers of these samples, each once, of which some token is trained.
std::vector<AnswerPlace> answers_in(const BatchLoader& data,
                                    const std::vector<DrawnSequence>& sequences) {
  std::vector<AnswerPlace> answers;
  for (const DrawnSequence& drawn : sequences) {
    for (const PlacedSample& sample : data.sequences(drawn.source).samples(drawn.index)) {
      if (!sample.answers.empty()) answers.push_back({drawn.source, sample.document});
    }
  }
  return answers;
}

}  // namespace

PreferenceTraining::PreferenceTraining(const Config& config,
                                       Engine& engine,
                                       const BatchLoader& training,
                                       const BatchLoader* validation)
    : config_(config), engine_(engine), training_(&training), validation_(validation) {
  if (!config.preferences.needs_reference()) return;
  training_part_.emplace(training);
  if (validation != nullptr) validation_part_.emplace(*validation);
}

void PreferenceTraining::find_reference(RunGoal goal,
                                        const std::function<void()>& take_first_weights) {
  if (!config_.preferences.needs_reference()) return;
  const bool diverges = config_.preferences.needs_divergence();
  const bool trains = goal == RunGoal::kTrain;
  const bool is_rank0 = engine_.world().rank() == 0;
  const ReferenceFile file(fs::path(config_.training.output_dir) / "reference.safetensors",
                           is_rank0 ? identity_of(config_) : std::string());
  ReferenceFile::Parts parts{{"training", &training_part_->answers}};
  if (validation_part_) parts["validation"] = &validation_part_->answers;
  if (diverges) {
    parts["training.mismatched"] = &training_part_->mismatched;
    if (validation_part_) parts["validation.mismatched"] = &validation_part_->mismatched;
  }
  file.read(parts, engine_.world());

  const BatchPlan& batch = engine_.plan().batch;
  struct Wanted {
    const BatchLoader* data;
    Part* part;
    std::vector<DrawnSequence> sequences;
  };
  std::vector<Wanted> wanted;
  if (trains) {
    // Compared by division: the product may be more than 2^63.
    constexpr std::int64_t kMostSamples = std::int64_t{1} << 50;
    const std::int64_t steps = config_.training.steps;
    const std::int64_t samples = steps > kMostSamples / batch.global_samples()
                                     ? kMostSamples
                                     : steps * batch.global_samples();
    wanted.push_back(
        {training_, &*training_part_, training_part_->answers.unknown(*training_, samples)});
  }
  if (validation_ != nullptr) {
    const std::int64_t samples =
        goal == RunGoal::kEvaluateSources
            ? validation_->sequences_per_epoch()
            : num_validation_samples(batch, *validation_, config_.training.eval_batches);
    wanted.push_back({validation_, &*validation_part_,
                      validation_part_->answers.unknown(*validation_, samples)});
  }
  std::int64_t sequences = 0;
  for (const Wanted& one : wanted) {
    sequences += std::ssize(one.sequences);
  }
  if (sequences == 0) return;
  take_first_weights();
  if (is_rank0) {
    spdlog::info("reference: how likely the model finds the answers of {} before it is trained",
                 counted(sequences, "sequence"));
  }
  for (const Wanted& one : wanted) {
    if (one.sequences.empty()) continue;
    one.part->answers.compute(engine_, *one.data, one.sequences);
    if (!diverges) continue;
    const std::vector<AnswerPlace> answers = answers_in(*one.data, one.sequences);
    const std::vector<double> found =
        mismatched_log_probabilities(engine_, *one.data, answers, "reference");
    for (std::size_t i = 0; i < answers.size(); ++i) {
      one.part->mismatched.set(answers[i], found[i]);
    }
  }
  if (trains && is_rank0) file.write(parts);
}

PreferenceData PreferenceTraining::data_of(const BatchLoader* loader,
                                           const std::optional<Part>& part) const {
  return {.answers = loader, .reference = part ? &part->answers : nullptr};
}

void PreferenceTraining::set_objective() {
  evaluated_ = data_of(validation_, validation_part_);
  auto objective = std::make_unique<PreferenceObjective>(
      engine_.plan(), config_.preferences, data_of(training_, training_part_), evaluated_);
  objective_ = objective.get();
  engine_.set_objective(std::move(objective));
}

void PreferenceTraining::set_objective_of_source(const BatchLoader& loader, int source) {
  evaluated_ = data_of(&loader, validation_part_);
  evaluated_.first_source = source;
  auto objective = std::make_unique<PreferenceObjective>(engine_.plan(), config_.preferences,
                                                         PreferenceData{}, evaluated_);
  objective_ = objective.get();
  engine_.set_objective(std::move(objective));
}

void PreferenceTraining::before_step(std::int64_t start_sample, std::int64_t samples) {
  if (!config_.preferences.needs_divergence()) return;
  measure_divergence(data_of(training_, training_part_), training_part_->mismatched, start_sample,
                     samples);
}

void PreferenceTraining::before_evaluation(std::int64_t samples) {
  if (!config_.preferences.needs_divergence()) return;
  measure_divergence(evaluated_, validation_part_->mismatched, 0, samples);
}

void PreferenceTraining::measure_divergence(const PreferenceData& data,
                                            const ReferenceLogProbabilities& mismatched,
                                            std::int64_t start_sample,
                                            std::int64_t samples) {
  std::vector<DrawnSequence> sequences;
  for (std::int64_t sample = start_sample; sample < start_sample + samples; ++sample) {
    sequences.push_back(data.answers->draw(sample));
  }
  const std::vector<AnswerPlace> answers = answers_in(*data.answers, sequences);
  double sum = 0.0;
  const std::vector<double> found = mismatched_log_probabilities(engine_, *data.answers, answers);
  for (std::size_t i = 0; i < answers.size(); ++i) {
    sum += found[i] - mismatched.of(data.first_source + answers[i].source, answers[i].document);
  }
  const auto count = static_cast<double>(std::max<std::size_t>(answers.size(), 1));
  objective_->set_divergence(std::max(0.0, sum / count));
}

}  // namespace dstrain
