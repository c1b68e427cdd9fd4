// "grpo": training on rewards of what the model answers, with the names of TRL's GRPOConfig.
#include "engine/config/key_builders.h"

namespace dstrain {
namespace {

constexpr KeyBlock kPolicy{"grpo.", &Config::policy};

/// Shown where there are rewards.
Key of_policy(Key key) {
  key.get = [get = std::move(key.get)](const Config& config) {
    return config.policy.enabled() ? get(config) : std::string();
  };
  return null_is_default(std::move(key));
}

}  // namespace

std::vector<Key> policy_keys() {
  constexpr double kMost = 1'000'000'000;
  return {
      of_policy(kPolicy.field("reward_command", {}, &PolicyConfig::reward_command)),
      of_policy(kPolicy.field("num_generations", between(2, kMost), &PolicyConfig::generations)),
      of_policy(kPolicy.field("max_completion_length", between(1, kMost),
                              &PolicyConfig::completion_tokens)),
      of_policy(kPolicy.field("top_k", between(0, kMost), &PolicyConfig::top_k)),
      of_policy(
          kPolicy.field("top_p", {.low = 0, .high = 1, .low_open = true}, &PolicyConfig::top_p)),
      of_policy(kPolicy.field("beta", at_least(0), &PolicyConfig::beta)),
      of_policy(kPolicy.field("use_bias_correction_kl", {}, &PolicyConfig::unbiased_divergence)),
      of_policy(kPolicy.choice("loss_type",
                               {{"dapo", PolicyLoss::kDapo},
                                {"grpo", PolicyLoss::kGrpo},
                                {"dr_grpo", PolicyLoss::kDrGrpo}},
                               &PolicyConfig::loss)),
      of_policy(kPolicy.choice("scale_rewards",
                               {{"group", RewardScale::kGroup},
                                {"batch", RewardScale::kBatch},
                                {"none", RewardScale::kNone}},
                               &PolicyConfig::scale)),
      of_policy(kPolicy.field("mask_truncated_completions", {}, &PolicyConfig::mask_truncated)),
      refused("grpo.temperature", {"1", "1.0"},
              "the loss is of the model's own probabilities: write 1"),
      refused("grpo.num_iterations", {"1"},
              "each completion is trained once, by the model that wrote it, so that nothing is "
              "clipped: write 1"),
  };
}

}  // namespace dstrain
