// PolicyConfig: training on rewards of what the model itself answers. Completions of prompts are
// sampled and rewarded, and each of the steps that follow trains some of them.
//
// "grpo" (GRPO: "DeepSeekMath", Shao et al. 2024, §4.1), with the names of TRL's GRPOConfig: there
// are several completions of each prompt, and the advantage of one is its reward less the mean of
// those of its prompt.
//
// "ppo" ("Proximal Policy Optimization Algorithms", Schulman et al. 2017), with the names of TRL's
// PPOConfig: a head of one row, beside that of the tokens, learns what reward is to be expected
// after each token, and the advantage of a token is what came beyond that.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/config/model_spec.h"

namespace dstrain {

enum class PolicyMethod : std::uint8_t { kGrpo, kPpo };

/// What the sum over tokens is divided by.
enum class PolicyLoss : std::uint8_t {
  kDapo,   ///< "dapo": the step's tokens (Yu et al. 2025, eq. 8)
  kGrpo,   ///< "grpo": the completion's own tokens, then the completions (Shao et al., eq. 3)
  kDrGrpo  ///< "dr_grpo": completions of the longest length there may be (Liu et al. 2025, §3.2)
};

/// What an advantage is divided by.
enum class RewardScale : std::uint8_t {
  kGroup,  ///< "group": the deviation of the rewards of its prompt
  kBatch,  ///< "batch": that of the completions that are sampled at once
  kNone    ///< "none"
};

/// How the divergence from the reference is estimated of a token that the reference finds e^d times
/// as likely (Schulman 2020, "Approximating KL divergence").
enum class DivergenceEstimate : std::uint8_t {
  kK1,  ///< "k1": -d
  kK3   ///< "k3": exp(d) - d - 1
};

/// The settings that only "ppo" has.
struct PpoConfig {
  std::int64_t passes = 4;  ///< "num_ppo_epochs"
  double clip = 0.2;        ///< "cliprange"
  /// "kl_coef": β of the divergence, which is taken from each token's reward
  double beta = 0.05;
  DivergenceEstimate estimate = DivergenceEstimate::kK1;  ///< "kl_estimator"
  double value_weight = 0.1;                              ///< "vf_coef"
  double value_clip = 0.2;                                ///< "cliprange_value"
  double discount = 1.0;                                  ///< "gamma"
  double lambda = 0.95;  ///< "lam" (Schulman et al. 2016, "GAE", eq. 16)
  bool whiten_rewards = false;
  std::optional<double> missing_end_penalty{};  ///< "missing_eos_penalty"
  bool operator==(const PpoConfig&) const = default;
};

struct PolicyConfig {
  PolicyMethod method = PolicyMethod::kGrpo;
  // Used by both methods:
  /// A command of the shell, which is given completions as JSON lines and answers each with a
  /// number; or empty.
  std::string reward_command;
  /// The folder of a model that scores completions, or empty. With a command as well, each line has
  /// its "score", and the command's answer is the reward.
  std::string reward_model;
  std::optional<ModelSpec> scorer{};     ///< what reward_model holds
  std::int64_t completion_tokens = 256;  ///< "max_completion_length", "response_length"
  std::int64_t top_k = 0;
  double top_p = 1.0;
  /// "num_mini_batches": steps that a pass over the completions sampled at once takes
  std::int64_t mini_batches = 1;
  /// "local_rollout_forward_batch_size": completions that a rank samples side by side
  std::int64_t texts_at_once = 16;
  // Used by "grpo" only:
  std::int64_t generations = 8;  ///< "num_generations": completions of a prompt; of "ppo", 1
  std::int64_t iterations = 1;   ///< "num_iterations": passes over completions
  double clip_low = 0.2;         ///< "epsilon": how far below 1 the ratio of probabilities counts
  std::optional<double> clip_high{};  ///< "epsilon_high": and how far above; none: as far
  /// β of the divergence from the model without its adapters, or that which the run begins with
  double beta = 0.0;
  /// "use_bias_correction_kl": the divergence, too, is multiplied by the ratio of probabilities, so
  /// that its gradient is that of the mean over what the model would sample (DeepSeek-AI 2025,
  /// "DeepSeek-V3.2")
  bool unbiased_divergence = true;
  PolicyLoss loss = PolicyLoss::kDapo;
  RewardScale scale = RewardScale::kGroup;
  bool mask_truncated = false;  ///< completions that were cut off are not trained
  PpoConfig ppo{};

  [[nodiscard]] bool enabled() const { return !reward_command.empty() || scorer.has_value(); }
  [[nodiscard]] bool has_values() const { return enabled() && method == PolicyMethod::kPpo; }
  /// "grpo" or "ppo".
  [[nodiscard]] std::string block() const { return method == PolicyMethod::kGrpo ? "grpo" : "ppo"; }
  /// The key that enables it.
  [[nodiscard]] std::string key() const {
    return block() + (reward_command.empty() ? ".reward_model" : ".reward_command");
  }
  [[nodiscard]] std::string longest_key() const {
    return block() +
           (method == PolicyMethod::kGrpo ? ".max_completion_length" : ".response_length");
  }
  [[nodiscard]] bool needs_reference() const {
    return enabled() && (method == PolicyMethod::kGrpo ? beta : ppo.beta) > 0.0;
  }
  [[nodiscard]] std::int64_t passes() const {
    return method == PolicyMethod::kGrpo ? iterations : ppo.passes;
  }
  /// The steps that train what is sampled before the first of them.
  [[nodiscard]] std::int64_t steps() const { return passes() * mini_batches; }
  bool operator==(const PolicyConfig&) const = default;
};

}  // namespace dstrain
