// PreferenceTraining: sets an engine up to learn preferences: finds what the model that the run
// begins with thinks of the answers in its data, and gives the engine the objective.
#pragma once

#include <functional>
#include <optional>

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

  /// Collective. Makes the reference known of all pairs that the run will see: from the file in the
  /// run's folder, and where that has not all, by computing it, after `take_first_weights` has
  /// given the engine the parameters that a run begins with. What was computed is written, where
  /// the run trains. Throws StorageError on rank 0, where the file cannot be written.
  void find_reference(RunGoal goal, const std::function<void()>& take_first_weights);
  /// Gives the engine its objective.
  void set_objective();
  /// The same where only source `source` of the validation data is evaluated, which `loader` has.
  void set_objective_of_source(const BatchLoader& loader, int source);

 private:
  const Config& config_;
  Engine& engine_;
  const BatchLoader& training_;
  const BatchLoader* validation_;
  std::optional<ReferenceLogProbabilities> training_reference_;
  std::optional<ReferenceLogProbabilities> validation_reference_;
};

}  // namespace dstrain
