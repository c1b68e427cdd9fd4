// "grpo" and "ppo": training on rewards of what the model answers, with the names of TRL's
// GRPOConfig and PPOConfig.
#include <fmt/format.h>

#include "engine/config/json_text.h"
#include "engine/config/key_builders.h"
#include "engine/config/model_json.h"

namespace dstrain {
namespace {

constexpr double kMost = 1'000'000'000;

/// A block's key: it says which method is meant, and is shown with that.
Key of_method(PolicyMethod method, Key key) {
  key.set = [method, path = key.path, set = std::move(key.set)](ConfigDraft& draft,
                                                                const JsonNode& node) {
    PolicyConfig& policy = draft.config.policy;
    if (policy.method != method && policy != PolicyConfig{}) {
      throw_config_error(
          node.where, path,
          "\"grpo\" and \"ppo\" are two ways to learn from rewards: leave one of them out");
    }
    policy.method = method;
    set(draft, node);
  };
  key.get = [method, get = std::move(key.get)](const Config& config) {
    const bool is_shown = config.policy.enabled() && config.policy.method == method;
    return is_shown ? get(config) : std::string();
  };
  return null_is_default(std::move(key));
}

/// The model is described at once: memory depends on it.
Key reward_model(const std::string& path) {
  Key key = field(
      path, {}, [](auto& config) -> auto& { return config.policy.reward_model; });
  key.shape = kSomeText;
  key.set = [path](ConfigDraft& draft, const JsonNode& node) {
    PolicyConfig& policy = draft.config.policy;
    policy.reward_model = node.text;
    policy.scorer = model_spec_in(node, path);
    if (!policy.scorer->scores) {
      throw_config_error(node.where, path,
                         fmt::format("the head of {} gives tokens; expected a model that scores, "
                                     "such as a run with preferences.loss_type \"reward\" makes",
                                     json_quote(node.text)));
    }
  };
  key.get = [](const Config& config) {
    return config.policy.scorer ? json_quote(config.policy.reward_model) : std::string();
  };
  return key;
}

/// Those that both methods have.
std::vector<Key> sampling_keys(PolicyMethod method, const char* longest) {
  const KeyBlock block{method == PolicyMethod::kGrpo ? "grpo." : "ppo.", &Config::policy};
  std::vector<Key> keys{
      block.field("reward_command", {}, &PolicyConfig::reward_command),
      reward_model(std::string(block.prefix) + "reward_model"),
      block.field(longest, between(1, kMost), &PolicyConfig::completion_tokens),
      block.field("top_k", between(0, kMost), &PolicyConfig::top_k),
      block.field("top_p", {.low = 0, .high = 1, .low_open = true}, &PolicyConfig::top_p),
      block.field("num_mini_batches", between(1, kMost), &PolicyConfig::mini_batches),
      block.field("local_rollout_forward_batch_size", between(1, 1024),
                  &PolicyConfig::texts_at_once)};
  for (Key& key : keys) {
    key = of_method(method, std::move(key));
  }
  keys.push_back(refused(std::string(block.prefix) + "temperature", {"1", "1.0"},
                         "the loss is of the model's own probabilities: write 1"));
  return keys;
}

}  // namespace

std::vector<Key> grpo_keys() {
  constexpr KeyBlock kGrpo{"grpo.", &Config::policy};
  std::vector<Key> keys = sampling_keys(PolicyMethod::kGrpo, "max_completion_length");
  const auto add = [&](Key key) { keys.push_back(of_method(PolicyMethod::kGrpo, std::move(key))); };
  add(kGrpo.field("num_generations", between(2, kMost), &PolicyConfig::generations));
  add(kGrpo.field("num_iterations", between(1, kMost), &PolicyConfig::iterations));
  add(kGrpo.field("epsilon", {.low = 0, .high = 1, .low_open = true}, &PolicyConfig::clip_low));
  add(kGrpo.field("epsilon_high", above(0), &PolicyConfig::clip_high));
  add(kGrpo.field("beta", at_least(0), &PolicyConfig::beta));
  add(kGrpo.field("use_bias_correction_kl", {}, &PolicyConfig::unbiased_divergence));
  add(kGrpo.choice(
      "loss_type",
      {{"dapo", PolicyLoss::kDapo}, {"grpo", PolicyLoss::kGrpo}, {"dr_grpo", PolicyLoss::kDrGrpo}},
      &PolicyConfig::loss));
  add(kGrpo.choice("scale_rewards",
                   {{"group", RewardScale::kGroup},
                    {"batch", RewardScale::kBatch},
                    {"none", RewardScale::kNone}},
                   &PolicyConfig::scale));
  add(kGrpo.field("mask_truncated_completions", {}, &PolicyConfig::mask_truncated));
  return keys;
}

std::vector<Key> ppo_keys() {
  constexpr KeyBlock kPpo{"ppo.", [](auto& config) -> auto& {return config.policy.ppo;
}
};  // namespace dstrain
std::vector<Key> keys = sampling_keys(PolicyMethod::kPpo, "response_length");
const auto add = [&](Key key) { keys.push_back(of_method(PolicyMethod::kPpo, std::move(key))); };
add(kPpo.field("num_ppo_epochs", between(1, kMost), &PpoConfig::passes));
add(kPpo.field("cliprange", {.low = 0, .high = 1, .low_open = true}, &PpoConfig::clip));
add(kPpo.field("kl_coef", at_least(0), &PpoConfig::beta));
add(kPpo.choice("kl_estimator",
                {{"k1", DivergenceEstimate::kK1}, {"k3", DivergenceEstimate::kK3}},
                &PpoConfig::estimate));
add(kPpo.field("vf_coef", at_least(0), &PpoConfig::value_weight));
add(kPpo.field("cliprange_value", above(0), &PpoConfig::value_clip));
add(kPpo.field("gamma", {.low = 0, .high = 1}, &PpoConfig::discount));
add(kPpo.field("lam", {.low = 0, .high = 1}, &PpoConfig::lambda));
add(kPpo.field("whiten_rewards", {}, &PpoConfig::whiten_rewards));
add(kPpo.field("missing_eos_penalty", above(0), &PpoConfig::missing_end_penalty));
return keys;
}

}  // namespace dstrain
