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
#include "engine/train/train_options.h"

namespace dstrain {

class PreferenceTraining {
 public:
  /// All outlive it. `validation`: nullptr where there are none. Of the options its goal, its stop
  /// signal and its activity count.
  PreferenceTraining(const Config& config,
                     Engine& engine,
                     const BatchLoader& training,
                     const BatchLoader* validation,
                     const TrainOptions& options);

  /// Collective. Makes the reference known of all answers that the run will see: from the file in
  /// the run's folder, and where that has not all, by computing it, after `take_first_weights` has
  /// given the engine the parameters that a run begins with. Where the run trains, what was
  /// computed is written, also once a minute meanwhile: a run that is stopped goes on from there.
  /// Each micro-batch counts as progress of a rank that starts. Returns 0, or the signal that asked
  /// some rank to stop before all was known. Throws StorageError on rank 0, where the file cannot
  /// be written.
  int find_reference(const std::function<void()>& take_first_weights);
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
    ReferenceLogProbabilities answers;
    std::optional<ReferenceLogProbabilities> mismatched;  // where there is a divergence
  };
  /// Answers that the run will see and whose reference is not known.
  struct Wanted {
    const BatchLoader& data;
    Part& part;
    std::vector<DrawnSequence> sequences;
  };
  [[nodiscard]] std::optional<Part> part_of(const BatchLoader* data) const;
  [[nodiscard]] std::vector<Wanted> wanted();
  /// Computes them a few at a time, and calls `keep` when that many are known. Returns as
  /// find_reference does.
  int compute(const std::vector<Wanted>& wanted, const std::function<void()>& keep);
  void measure_divergence(const PreferenceData& data,
                          const ReferenceLogProbabilities& mismatched,
                          std::int64_t start_sample,
                          std::int64_t samples);
  PreferenceData data_of(const BatchLoader* loader, const std::optional<Part>& part) const;

  const Config& config_;
  Engine& engine_;
  const BatchLoader* training_;
  const BatchLoader* validation_;
  const TrainOptions& options_;
  std::optional<Part> training_part_;
  std::optional<Part> validation_part_;
  PreferenceData evaluated_{};
  PreferenceObjective* objective_ = nullptr;  // the engine's
};

}  // namespace dstrain
