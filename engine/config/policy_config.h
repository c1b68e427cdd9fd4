// PolicyConfig: training on rewards of what the model itself answers (GRPO: "DeepSeekMath", Shao et
// al. 2024, §4.1). Each step samples several completions of each prompt and has them rewarded; the
// advantage of a completion is its reward less the mean of those of its prompt. "grpo", with TRL's
// names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/config/model_spec.h"

namespace dstrain {

/// What the sum over tokens is divided by.
enum class PolicyLoss : std::uint8_t {
  kDapo,   ///< "dapo": the step's tokens (Yu et al. 2025, eq. 8)
  kGrpo,   ///< "grpo": the completion's own tokens, then the completions (Shao et al., eq. 3)
  kDrGrpo  ///< "dr_grpo": completions of the longest length there may be (Liu et al. 2025, §3.2)
};

/// What an advantage is divided by.
enum class RewardScale : std::uint8_t {
  kGroup,  ///< "group": the deviation of the rewards of its prompt
  kBatch,  ///< "batch": that of the step's
  kNone    ///< "none"
};

struct PolicyConfig {
  /// A command of the shell, which is given completions as JSON lines and answers each with a
  /// number; or empty.
  std::string reward_command;
  /// The folder of a model that scores completions, or empty. With a command as well, each line has
  /// its "score", and the command's answer is the reward.
  std::string reward_model;
  std::optional<ModelSpec> scorer{};     ///< what reward_model holds
  std::int64_t generations = 8;          ///< "num_generations": completions of a prompt
  std::int64_t completion_tokens = 256;  ///< "max_completion_length"
  std::int64_t top_k = 0;
  double top_p = 1.0;
  double beta = 0.0;  ///< β of the divergence from the model without its adapters
  /// "use_bias_correction_kl": the divergence, too, is multiplied by the ratio of probabilities, so
  /// that its gradient is that of the mean over what the model would sample (DeepSeek-AI 2025,
  /// "DeepSeek-V3.2")
  bool unbiased_divergence = true;
  PolicyLoss loss = PolicyLoss::kDapo;
  RewardScale scale = RewardScale::kGroup;
  bool mask_truncated = false;  ///< completions that were cut off are not trained

  [[nodiscard]] bool enabled() const { return !reward_command.empty() || scorer.has_value(); }
  /// The key that enables it.
  [[nodiscard]] const char* key() const {
    return reward_command.empty() ? "grpo.reward_model" : "grpo.reward_command";
  }
  [[nodiscard]] bool needs_reference() const { return enabled() && beta > 0.0; }
  bool operator==(const PolicyConfig&) const = default;
};

}  // namespace dstrain
