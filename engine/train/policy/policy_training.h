// PolicyTraining: sets an engine up to learn from rewards ("grpo", policy_config.h). Before each
// step the ranks sample completions of the step's prompts, as the model is then; a model or the
// user's program rewards them; and the step trains them. A run's sample is a completion: sample i
// is of prompt i / generations.
//
// What is sampled is a function of the parameters, the seed and the sample's number, so that a run
// that resumes samples what it would have sampled.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/config/config.h"
#include "engine/data/prompt_lines.h"
#include "engine/train/engine.h"
#include "engine/train/objective/policy_gradient.h"
#include "engine/train/policy/reward_model.h"
#include "engine/train/policy/reward_program.h"
#include "engine/train/prompt_encoder.h"
#include "engine/train/step_metrics.h"
#include "engine/train/text_sampler.h"
#include "engine/train/train_options.h"

namespace dstrain {

class PolicyTraining {
 public:
  /// Reads all prompts, and, on rank 0, starts the program of rewards. All that it is given
  /// outlives it. Of the options its activity counts. Throws ConfigError.
  PolicyTraining(const Config& config, Engine& engine, const TrainOptions& options);

  /// Gives the engine its objective.
  void set_objective();
  /// Collective. Samples the step's completions and has them rewarded. Throws ConfigError on all
  /// ranks where the program does not.
  void before_step(std::int64_t start_sample, std::int64_t samples);
  /// The step's sequences: LoadBatch.
  void load(std::int64_t first_sample,
            std::span<std::int32_t> inputs,
            std::span<std::int32_t> targets) const;

  /// Of the last step.
  [[nodiscard]] PolicyMetrics metrics(const ObjectiveSums& sums) const;
  [[nodiscard]] std::vector<SampledRollout> rollouts() const;
  [[nodiscard]] std::vector<double> epochs(std::int64_t samples) const {
    return prompts_.epochs(samples / config_.policy.generations);
  }

 private:
  /// What is shown of a rollout, beside its ids.
  struct Text {
    std::int64_t line = 0;  // of its prompt
    std::string text;
    double score = 0.0;  // by the reward model
  };
  void sample(std::int64_t start_sample, std::int64_t samples);
  void reward();
  void score();
  void find_reference();
  [[nodiscard]] std::string line_for_program(std::size_t rollout) const;

  const Config& config_;
  Engine& engine_;
  const TrainOptions& options_;
  PromptEncoder encoder_;
  PromptLines prompts_;
  TextSampler sampler_;
  std::optional<RewardModel> model_;
  std::optional<RewardProgram> program_;  // on rank 0
  std::int64_t start_sample_ = 0;
  std::vector<Rollout> rollouts_;
  std::vector<Text> texts_;
  double sampling_seconds_ = 0.0;
  double reward_seconds_ = 0.0;
};

}  // namespace dstrain
