// Texts that ranks continue by the model that they train: training.eval_prompts, and what "grpo"
// has rewarded.
#include <string>

#include <fmt/format.h>

#include "engine/config/json_text.h"
#include "engine/config/resolve_parts.h"

namespace dstrain {

void resolve_sampling(const LoadedConfig& loaded, Origins& origins) {
  const Config& config = loaded.config;
  const bool is_policy = config.policy.enabled();
  const bool has_prompts = !config.training.eval_prompts.empty();
  const std::string kPrompts =
      is_policy ? config.policy.key() : std::string("training.eval_prompts");
  if (!is_policy && !has_prompts) return;
  const auto refuse = [&](const std::string& why) {
    throw_config_error(origins[kPrompts], kPrompts,
                       fmt::format("a rank continues texts by all of the model, {}", why));
  };
  if (config.pipeline.stages * config.pipeline.virtual_stages > 1) {
    refuse("which pipeline cuts: write 1 for its stages");
  }
  if (config.expert_parallel.size > 1) {
    refuse("which expert_parallel cuts: write 1 for its size");
  }
  if (config.preferences.of_scores() || config.model.scores) {
    refuse("and this one gives scores in place of tokens: leave the prompts out");
  }
  if (has_prompts && config.training.eval_tokens >= config.data.sequence_length) {
    throw_config_error(
        origins["training.eval_tokens"], "training.eval_tokens",
        fmt::format("{} tokens and a prompt do not fit in data.sequence_length {}: expected fewer",
                    config.training.eval_tokens, config.data.sequence_length));
  }
}

}  // namespace dstrain
