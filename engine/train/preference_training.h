// PreferenceTraining: sets an engine up to learn preferences: finds what the model that the run
// begins with thinks of the answers in its data, gives the engine the objective, and measures,
// where a loss wants it, how far the model has moved away from that.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "engine/config/config.h"
#include "engine/data/batch_loader.h"
#include "engine/train/engine.h"
#include "engine/train/objective/preferences.h"
#include "engine/train/objective/reference_log_probabilities.h"
#include "engine/train/run_goal.h"

namespace dstrain {

class PreferenceTraining {
 public:
  /// All outlive it. `validation`: nullptr where there are none.
  PreferenceTraining(const Config& config,
                     Engine& engine,
                     const BatchLoader& training,
                     const BatchLoader* validation);

  /// Collective. Makes the reference known of all answers that the run will see: from the file in
  /// the run's folder, and where that has not all, by computing it, after `take_first_weights` has
  /// given the engine the parameters that a run begins with. What was computed is written, where
  /// the run trains. Throws StorageError on rank 0, where the file cannot be written.
  void find_reference(RunGoal goal, const std::function<void()>& take_first_weights);
  /// Gives the engine its objective.
  void set_objective();
  /// The same where only source `source` of the validation data is evaluated, which `loader` has.
  void set_objective_of_source(const BatchLoader& loader, int source);

  /// Collective. Before a step on these samples, or an evaluation of the first `samples` of the
  /// validation data, or of the source that is evaluated: measures the divergence, where the loss
  /// has one, over the answers in them.
  void before_step(std::int64_t start_sample, std::int64_t samples);
  void before_evaluation(std::int64_t samples);

 private:
  /// Answers of one part of the data, as they are and mismatched.
  struct Part {
    explicit Part(const BatchLoader& data) : answers(data), mismatched(data) {}
    ReferenceLogProbabilities answers;
    ReferenceLogProbabilities mismatched;  // where there is a divergence
  };
  void measure_divergence(const PreferenceData& data,
                          const ReferenceLogProbabilities& mismatched,
                          std::int64_t start_sample,
                          std::int64_t samples);
  PreferenceData data_of(const BatchLoader* loader, const std::optional<Part>& part) const;

  const Config& config_;
  Engine& engine_;
  const BatchLoader* training_;
  const BatchLoader* validation_;
  std::optional<Part> training_part_;
  std::optional<Part> validation_part_;
  PreferenceData evaluated_{};
  PreferenceObjective* objective_ = nullptr;  // the engine's
};

}  // namespace dstrain
