// Training on rewards of what the model answers: "grpo" and "ppo".
#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "engine/config/dataset_description.h"
#include "engine/config/json_text.h"
#include "engine/config/resolve_parts.h"

namespace dstrain {
namespace {

constexpr const char* kValueHeadKey = "model.value_head";

/// The data, and the sizes of what is sampled.
void check_prompts(const Config& config, const std::string& block, Origins& origins) {
  const PolicyConfig& policy = config.policy;
  if (!config.data.validation.empty()) {
    throw_config_error(
        origins["data.validation"], "data.validation",
        fmt::format("with \"{}\", the rewards say how the model does: leave it out", block));
  }
  for (const DataSource& source : config.data.train) {
    if (names_json_lines(source.prefix)) continue;
    throw_config_error(
        origins["data.train"], "data.train",
        fmt::format("{}: with \"{}\", prompts come from JSON lines, a file *.jsonl whose lines "
                    "have a \"prompt\"",
                    source.prefix, block));
  }
  if (policy.completion_tokens >= config.data.sequence_length) {
    throw_config_error(
        origins[policy.longest_key()], policy.longest_key(),
        fmt::format("{} tokens and a prompt do not fit in data.sequence_length {}: expected fewer",
                    policy.completion_tokens, config.data.sequence_length));
  }
  if (!config.batch.train_batch_size) return;
  const std::int64_t completions = *config.batch.train_batch_size * policy.mini_batches;
  if (completions % policy.generations != 0) {
    throw_config_error(
        origins["grpo.num_generations"], "grpo.num_generations",
        fmt::format("{}: train_batch_size {}{} counts completions, and is no multiple of it",
                    policy.generations, *config.batch.train_batch_size,
                    policy.mini_batches == 1
                        ? ""
                        : fmt::format(" times num_mini_batches {}", policy.mini_batches)));
  }
}

/// The model without its adapters, or that which the run begins with.
void check_reference(const Config& config, Origins& origins) {
  const PolicyConfig& policy = config.policy;
  if (!policy.needs_reference()) return;
  const std::string beta = policy.has_values() ? "ppo.kl_coef" : "grpo.beta";
  if (config.training.cuda_graphs) {
    throw_config_error(origins["training.cuda_graphs"], "training.cuda_graphs",
                       fmt::format("what is recorded is the model that is trained, and not the "
                                   "reference of {}: leave one of the two out",
                                   beta));
  }
  if (!config.adapters.modules_to_save.empty()) {
    throw_config_error(origins[beta], beta,
                       "the divergence is from the model without its adapters, and what "
                       "peft.modules_to_save names changes with them: leave that out, or write 0");
  }
  if (!config.adapters.enabled() && config.zero.stage == 3) {
    throw_config_error(origins[beta], beta,
                       "the divergence is from the parameters that the run begins with, of which "
                       "each rank keeps a "
                       "copy: take zero_optimization.stage 2 or less, add \"peft\", or write 0");
  }
}

}  // namespace

void resolve_policy(LoadedConfig& loaded, Origins& origins) {
  Config& config = loaded.config;
  PolicyConfig& policy = config.policy;
  if (config.model.values && !policy.has_values()) {
    throw_config_error(origins[kValueHeadKey], kValueHeadKey,
                       "what \"ppo\" trains beside the model's head: leave it out, or add \"ppo\"");
  }
  if (policy == PolicyConfig{}) return;
  const std::string block = policy.block();
  const auto refuse = [&](const std::string& key, const std::string& why) {
    throw_config_error(origins[key], key, why);
  };
  if (!policy.enabled()) {
    throw_config_error(
        loaded.file, block + ".reward_command",
        "missing: a command that reads completions as JSON lines from stdin, and writes a reward "
        "for each, such as \"python3 rewards.py\"; or, with \"reward_model\", the folder of a "
        "model that scores them");
  }
  if (config.preferences.enabled()) {
    refuse(
        "preferences.loss_type",
        fmt::format("with \"{}\", the model learns from rewards: leave one of the two out", block));
  }
  if (config.model.scores) {
    refuse(policy.key(), "a model that gives scores in place of tokens answers nothing");
  }
  if (config.rampup_batch_size || config.curriculum.enabled) {
    refuse(policy.key(),
           "steps of rewards all have the same size: leave rampup_batch_size and "
           "curriculum_learning out");
  }
  if (config.fp8.enabled) {
    refuse("fp8.enabled", "completions are sampled and trained by the same numbers: leave fp8 out");
  }
  if (policy.has_values()) {
    policy.generations = 1;
    config.model.values = true;
    origins[kValueHeadKey] = "derived: \"ppo\"";
  }
  check_prompts(config, block, origins);
  check_reference(config, origins);
}

}  // namespace dstrain
