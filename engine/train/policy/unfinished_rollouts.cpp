// What was sampled, on its way into a checkpoint and back, where a run stops between two steps that
// train it (engine/checkpoint/FORMAT.md). Floats are written with as many digits as tell them
// apart.
#include <nlohmann/json.hpp>

#include "engine/checkpoint/checkpoint_error.h"
#include "engine/train/policy/policy_training.h"

namespace dstrain {
namespace {

using Json = nlohmann::json;

}  // namespace

std::string PolicyTraining::unfinished(std::int64_t start_sample) const {
  const std::int64_t samples = engine_.plan().batch.samples_at(start_sample);
  if (engine_.world().rank() != 0 || place_of(start_sample, samples).step == 0) return {};
  Json completions = Json::array();
  for (const Rollout& rollout : rollouts_) {
    completions.push_back({{"ids", rollout.ids},
                           {"prompt_tokens", rollout.prompt_tokens},
                           {"truncated", rollout.is_truncated},
                           {"reward", rollout.reward},
                           {"reference_nats", rollout.reference_nats},
                           {"old_nats", rollout.old_nats},
                           {"old_values", rollout.old_values}});
  }
  return Json{{"num_generations", config_.policy.generations}, {"completions", completions}}
             .dump() +
         "\n";
}

void PolicyTraining::take_up(const std::string& unfinished) {
  if (unfinished.empty()) return;
  const PolicyConfig& policy = config_.policy;
  try {
    const Json all = Json::parse(unfinished);
    if (all.at("num_generations") != policy.generations) throw CheckpointError("");
    for (const Json& one : all.at("completions")) {
      Rollout& rollout = rollouts_.emplace_back();
      one.at("ids").get_to(rollout.ids);
      one.at("prompt_tokens").get_to(rollout.prompt_tokens);
      one.at("truncated").get_to(rollout.is_truncated);
      one.at("reward").get_to(rollout.reward);
      one.at("reference_nats").get_to(rollout.reference_nats);
      one.at("old_nats").get_to(rollout.old_nats);
      one.at("old_values").get_to(rollout.old_values);
      const std::int64_t length = rollout.completion_tokens();
      if (!policy.needs_reference()) rollout.reference_nats.clear();  // β is 0 now
      const auto has = [length](const std::vector<float>& numbers, bool has_some) {
        return std::ssize(numbers) == (has_some ? length : 0);
      };
      const bool fits = rollout.prompt_tokens >= 1 && length >= 1 &&
                        std::ssize(rollout.ids) <= engine_.plan().batch.sequence &&
                        has(rollout.old_nats, true) &&
                        has(rollout.old_values, policy.has_values()) &&
                        has(rollout.reference_nats, policy.needs_reference());
      if (!fits) throw CheckpointError("");
    }
  } catch (const std::exception&) {
    throw CheckpointError(
        "the completions that the checkpoint's last step trained are not those of such a run: "
        "resume with the \"grpo\" or \"ppo\", and the data.sequence_length, of the run that saved "
        "it, and change these once it has sampled again");
  }
  set_advantages_of_all();
}

}  // namespace dstrain
