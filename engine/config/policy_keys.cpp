// "grpo": training on rewards of what the model answers, with the names of TRL's GRPOConfig.
#include <fmt/format.h>

#include "engine/config/json_text.h"
#include "engine/config/key_builders.h"
#include "engine/config/model_json.h"

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

/// The model is described at once: memory depends on it.
Key reward_model() {
  Key key = kPolicy.field("reward_model", {}, &PolicyConfig::reward_model);
  key.shape = kSomeText;
  key.set = [](ConfigDraft& draft, const JsonNode& node) {
    PolicyConfig& policy = draft.config.policy;
    policy.reward_model = node.text;
    policy.scorer = model_spec_in(node, "grpo.reward_model");
    if (!policy.scorer->scores) {
      throw_config_error(node.where, "grpo.reward_model",
                         fmt::format("the head of {} gives tokens; expected a model that scores, "
                                     "such as a run with preferences.loss_type \"reward\" makes",
                                     json_quote(node.text)));
    }
  };
  key.get = [](const Config& config) {
    return config.policy.scorer ? json_quote(config.policy.reward_model) : std::string();
  };
  return null_is_default(std::move(key));
}

}  // namespace

std::vector<Key> policy_keys() {
  constexpr double kMost = 1'000'000'000;
  return {
      of_policy(kPolicy.field("reward_command", {}, &PolicyConfig::reward_command)),
      reward_model(),
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
