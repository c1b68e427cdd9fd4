// PolicyTraining: sets an engine up to learn from rewards ("grpo" and "ppo", policy_config.h). The
// ranks sample completions, as the model is then, and a model or the user's program rewards them;
// PolicyConfig::steps() steps train them, each a part of them, pass after pass; then come the next.
// A run's sample is a completion that a step trains; completion i is of prompt i / generations.
//
// What is sampled is a function of the parameters, the seed and the completion's number, and, by
// the rounding of products alone, of what is read beside it: a run that resumes in the same layout
// samples what it would have sampled. Where it resumes between two steps of the
// same completions, the checkpoint has these.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/config/config.h"
#include "engine/data/prompt_lines.h"
#include "engine/train/engine.h"
#include "engine/train/objective/rollout.h"
#include "engine/train/policy/reward_model.h"
#include "engine/train/policy/reward_program.h"
#include "engine/train/prompt_encoder.h"
#include "engine/train/step_metrics.h"
#include "engine/train/text_sampler.h"
#include "engine/train/train_options.h"

namespace dstrain {

class PolicyTraining {
 public:
  /// Collective. Reads all prompts, of which none may be too long, and, on rank 0, starts the
  /// program of rewards. All that it is given outlives it. Of the options its activity counts.
  /// Throws ConfigError on all ranks alike.
  PolicyTraining(const Config& config, Engine& engine, const TrainOptions& options);

  /// Gives the engine its objective.
  void set_objective();
  /// Takes up what unfinished() gave. Throws CheckpointError.
  void take_up(const std::string& unfinished);
  /// On rank 0: what was sampled, where a step that begins with that sample trains it further; else
  /// empty.
  [[nodiscard]] std::string unfinished(std::int64_t start_sample) const;

  /// Collective. Samples completions and has them rewarded, where the step needs new ones, and
  /// deals the step's out. Throws ConfigError on all ranks where the program does not.
  void before_step(std::int64_t start_sample, std::int64_t samples);
  /// The step's sequences: LoadBatch.
  void load(std::int64_t first_sample,
            std::span<std::int32_t> inputs,
            std::span<std::int32_t> targets) const;

  /// The metrics of the last step, and of all that was sampled for it.
  [[nodiscard]] PolicyMetrics metrics(const ObjectiveSums& sums) const;
  /// What was sampled before the last step, on rank 0.
  [[nodiscard]] std::vector<SampledRollout> rollouts() const;
  /// How often each source was gone through after so many samples.
  [[nodiscard]] std::vector<double> epochs(std::int64_t samples) const;

 private:
  /// What is shown of a rollout, beside its ids.
  struct Text {
    std::int64_t line = 0;  // of its prompt
    std::string text;
    double score = 0.0;  // by the reward model
  };
  /// What the model, as it is, finds of each completion's tokens.
  struct Found {
    std::vector<std::vector<float>> nats;
    std::vector<std::vector<float>> values;  // empty where there is no head of values
  };
  /// Which of the steps that train the same completions begins with that sample, and the first
  /// sample of all these.
  struct Place {
    std::int64_t step = 0;
    std::int64_t first_sample = 0;
  };
  [[nodiscard]] Place place_of(std::int64_t start_sample, std::int64_t samples) const;
  /// The ids of the prompt in a line. Throws ConfigError, naming the line.
  [[nodiscard]] std::vector<std::int32_t> prompt_in(std::int64_t line) const;
  void check_prompts();
  void sample(std::int64_t first, std::int64_t completions);
  void reward();
  void score();
  void set_targets();
  void set_advantages_of_all();
  Found find();
  void deal_out(std::int64_t start_sample, std::int64_t samples, std::int64_t step);
  [[nodiscard]] std::string line_for_program(std::size_t rollout) const;

  const Config& config_;
  Engine& engine_;
  const TrainOptions& options_;
  PromptEncoder encoder_;
  PromptLines prompts_;
  TextSampler sampler_;
  std::optional<RewardModel> model_;
  std::optional<RewardProgram> program_;  // on rank 0
  std::vector<Rollout> rollouts_;         // all that were sampled at once
  std::vector<Text> texts_;               // of these
  bool samples_now_ = false;              // before this step
  std::int64_t start_sample_ = 0;
  std::vector<Rollout> of_step_;
  double sampling_seconds_ = 0.0;
  double reward_seconds_ = 0.0;
};

}  // namespace dstrain
