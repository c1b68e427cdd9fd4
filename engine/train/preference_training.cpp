#include "engine/train/preference_training.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <spdlog/spdlog.h>

#include "engine/base/amount_text.h"
#include "engine/base/checksum.h"
#include "engine/base/mapped_file.h"
#include "engine/config/config_error.h"
#include "engine/data/token_hashes.h"
#include "engine/train/evaluation.h"
#include "kernels/core/caller_stream.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::chrono::seconds kTellEvery{10};
constexpr std::chrono::minutes kKeepEvery{1};
/// Micro-batches of each rank between moments at which all of what is known may be kept.
constexpr std::int64_t kRoundsAtATime = 16;

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
                                       const BatchLoader* validation,
                                       const TrainOptions& options)
    : config_(config),
      engine_(engine),
      training_(&training),
      validation_(validation),
      options_(options),
      training_part_(part_of(training_)),
      validation_part_(part_of(validation_)) {}

std::optional<PreferenceTraining::Part> PreferenceTraining::part_of(const BatchLoader* data) const {
  if (data == nullptr || !config_.preferences.needs_reference()) return std::nullopt;
  const ReferenceLogProbabilities unknown(*data);
  return Part{
      .answers = unknown,
      .mismatched = config_.preferences.needs_divergence() ? std::optional(unknown) : std::nullopt};
}

std::vector<PreferenceTraining::Wanted> PreferenceTraining::wanted() {
  const BatchPlan& batch = engine_.plan().batch;
  std::vector<Wanted> all;
  const auto add = [&](const BatchLoader& data, Part& part, std::int64_t samples) {
    if (auto sequences = part.answers.unknown(data, samples); !sequences.empty()) {
      all.push_back({data, part, std::move(sequences)});
    }
  };
  if (options_.goal == RunGoal::kTrain) {
    // Compared by division: the product may be more than 2^63.
    constexpr std::int64_t kMostSamples = std::int64_t{1} << 50;
    const std::int64_t steps = config_.training.steps;
    const bool is_most = steps > kMostSamples / batch.global_samples();
    add(*training_, *training_part_, is_most ? kMostSamples : steps * batch.global_samples());
  }
  if (validation_ != nullptr) {
    add(*validation_, *validation_part_,
        options_.goal == RunGoal::kEvaluateSources
            ? validation_->sequences_per_epoch()
            : num_validation_samples(batch, *validation_, config_.training.eval_batches));
  }
  return all;
}

int PreferenceTraining::find_reference(const std::function<void()>& take_first_weights) {
  if (!config_.preferences.needs_reference()) return 0;
  const bool is_rank0 = engine_.world().rank() == 0;
  const ReferenceFile file(fs::path(config_.training.output_dir) / "reference.safetensors",
                           is_rank0 ? identity_of(config_) : std::string());
  ReferenceFile::Parts parts;
  const auto add_part = [&](const std::string& name, std::optional<Part>& part) {
    if (!part) return;
    parts[name] = &part->answers;
    if (part->mismatched) parts[name + ".mismatched"] = &*part->mismatched;
  };
  add_part("training", training_part_);
  add_part("validation", validation_part_);
  file.read(parts, engine_.world());

  const std::vector<Wanted> unknown = wanted();
  if (unknown.empty()) return 0;
  take_first_weights();
  const bool writes = options_.goal == RunGoal::kTrain && is_rank0;
  auto kept = std::chrono::steady_clock::now();
  const int signal = compute(unknown, [&] {
    if (!writes || std::chrono::steady_clock::now() - kept < kKeepEvery) return;
    file.write(parts);
    kept = std::chrono::steady_clock::now();
  });
  if (writes) file.write(parts);
  return signal;
}

int PreferenceTraining::compute(const std::vector<Wanted>& wanted,
                                const std::function<void()>& keep) {
  const BatchPlan& batch = engine_.plan().batch;
  const std::int64_t at_a_time = kRoundsAtATime * batch.micro_batch * batch.data_parallel;
  const bool is_rank0 = engine_.world().rank() == 0;
  std::int64_t all = 0;
  for (const Wanted& one : wanted) {
    all += std::ssize(one.sequences);
  }
  if (is_rank0) {
    spdlog::info("reference: how likely the model finds the answers of {} before it is trained",
                 counted(all, "sequence"));
  }
  std::int64_t done = 0;
  auto told = std::chrono::steady_clock::now();
  double signal = 0.0;
  const GoesOn goes_on = [&] {
    if (options_.activity != nullptr) options_.activity->begin_phase(RunPhase::kStarting);
    if (options_.stop_signal != nullptr) signal = options_.stop_signal->load();
    CallerStream host;
    engine_.world().all_reduce({&signal, DType::kF64, Shape{1}}, ReduceOp::kMax, Purpose::kControl,
                               host);
    const auto now = std::chrono::steady_clock::now();
    if (is_rank0 && now - told >= kTellEvery) {
      told = now;
      spdlog::info("reference: {} of {}", grouped(done), counted(all, "sequence"));
    }
    return signal == 0.0;
  };
  for (const auto& [data, part, sequences] : wanted) {
    for (auto begin = sequences.begin(); begin != sequences.end();) {
      const auto end = begin + std::min(at_a_time, sequences.end() - begin);
      const std::vector<DrawnSequence> some(begin, end);
      if (part.mismatched) {
        const std::vector<AnswerPlace> answers = answers_in(data, some);
        const auto found = mismatched_log_probabilities(engine_, data, answers, goes_on);
        if (!found) return static_cast<int>(signal);
        for (std::size_t i = 0; i < answers.size(); ++i) {
          part.mismatched->set(answers[i], (*found)[i]);
        }
      }
      if (!part.answers.compute(engine_, data, some, goes_on)) return static_cast<int>(signal);
      done += end - begin;
      begin = end;
      keep();
    }
  }
  return 0;
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
  measure_divergence(data_of(training_, training_part_), *training_part_->mismatched, start_sample,
                     samples);
}

void PreferenceTraining::before_evaluation(std::int64_t samples) {
  if (!config_.preferences.needs_divergence()) return;
  measure_divergence(evaluated_, *validation_part_->mismatched, 0, samples);
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
  const std::vector<double> found =
      mismatched_log_probabilities(engine_, *data.answers, answers).value();
  for (std::size_t i = 0; i < answers.size(); ++i) {
    sum += found[i] - mismatched.of(data.first_source + answers[i].source, answers[i].document);
  }
  const auto count = static_cast<double>(std::max<std::size_t>(answers.size(), 1));
  objective_->set_divergence(std::max(0.0, sum / count));
}

}  // namespace dstrain
