// Training on rewards of what the model answers: "grpo".
#include <string>

#include <fmt/format.h>

#include "engine/config/dataset_description.h"
#include "engine/config/json_text.h"
#include "engine/config/resolve_parts.h"

namespace dstrain {

void resolve_policy(const LoadedConfig& loaded, Origins& origins) {
  const Config& config = loaded.config;
  const PolicyConfig& policy = config.policy;
  const char* const source = policy.key();
  if (policy == PolicyConfig{}) return;
  const auto refuse = [&](const std::string& key, const std::string& why) {
    throw_config_error(origins[key], key, why);
  };
  if (!policy.enabled()) {
    throw_config_error(loaded.file, "grpo.reward_command",
                       "missing: a command that reads completions as JSON lines from stdin, and "
                       "writes a reward for each, such as \"python3 rewards.py\"; or, with "
                       "\"reward_model\", the folder of a model that scores them");
  }
  if (config.preferences.enabled()) {
    refuse("preferences.loss_type",
           "with \"grpo\", the model learns from rewards: leave one of the two out");
  }
  if (config.model.scores) {
    refuse(source, "a model that gives scores in place of tokens answers nothing");
  }
  if (!config.data.validation.empty()) {
    refuse("data.validation",
           "with \"grpo\", the reward of each step says how the model does: leave it out");
  }
  for (const DataSource& source : config.data.train) {
    if (names_json_lines(source.prefix)) continue;
    refuse("data.train",
           fmt::format("{}: with \"grpo\", prompts come from JSON lines, a file *.jsonl "
                       "whose lines have a \"prompt\"",
                       source.prefix));
  }
  if (policy.completion_tokens >= config.data.sequence_length) {
    refuse(
        "grpo.max_completion_length",
        fmt::format("{} tokens and a prompt do not fit in data.sequence_length {}: expected fewer",
                    policy.completion_tokens, config.data.sequence_length));
  }
  if (config.rampup_batch_size || config.curriculum.enabled) {
    refuse(source,
           "steps of rewards all have the same size: leave rampup_batch_size and "
           "curriculum_learning out");
  }
  if (config.fp8.enabled) {
    refuse("fp8.enabled", "completions are sampled and trained by the same numbers: leave fp8 out");
  }
  if (config.batch.train_batch_size && *config.batch.train_batch_size % policy.generations != 0) {
    refuse("grpo.num_generations",
           fmt::format("{}: train_batch_size {} counts completions, and is no multiple of it",
                       policy.generations, *config.batch.train_batch_size));
  }
  if (policy.needs_reference() && config.training.cuda_graphs) {
    refuse("training.cuda_graphs",
           "what is recorded has adapters, and the reference of grpo.beta "
           "has none: leave one of the two out");
  }
  if (policy.needs_reference() &&
      (!config.adapters.enabled() || !config.adapters.modules_to_save.empty())) {
    refuse("grpo.beta",
           "the divergence is from the model without its adapters: add \"peft\", without "
           "modules_to_save, or write 0");
  }
}

}  // namespace dstrain
