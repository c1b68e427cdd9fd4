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
  Json all = Json::array();
  for (std::size_t i = 0; i < rollouts_.size(); ++i) {
    const Rollout& rollout = rollouts_[i];
    all.push_back({{"ids", rollout.ids},
                   {"prompt_tokens", rollout.prompt_tokens},
                   {"truncated", rollout.is_truncated},
                   {"reward", rollout.reward},
                   {"reference_nats", rollout.reference_nats},
                   {"old_nats", rollout.old_nats},
                   {"old_values", rollout.old_values}});
  }
  return all.dump() + "\n";
}

void PolicyTraining::take_up(const std::string& unfinished) {
  if (unfinished.empty()) return;
  try {
    for (const Json& one : Json::parse(unfinished)) {
      Rollout& rollout = rollouts_.emplace_back();
      one.at("ids").get_to(rollout.ids);
      one.at("prompt_tokens").get_to(rollout.prompt_tokens);
      one.at("truncated").get_to(rollout.is_truncated);
      one.at("reward").get_to(rollout.reward);
      one.at("reference_nats").get_to(rollout.reference_nats);
      one.at("old_nats").get_to(rollout.old_nats);
      one.at("old_values").get_to(rollout.old_values);
      const std::int64_t length = rollout.completion_tokens();
      const bool fits =
          rollout.prompt_tokens >= 1 && length >= 1 &&
          std::ssize(rollout.ids) <= engine_.plan().batch.sequence &&
          std::ssize(rollout.old_nats) == length &&
          std::ssize(rollout.old_values) == (config_.policy.has_values() ? length : 0);
      if (!fits) throw CheckpointError("");
    }
  } catch (const std::exception&) {
    throw CheckpointError(
        "the completions that the checkpoint's last step trained are not those of such a run: "
        "resume with the \"grpo\" or \"ppo\", and the data.sequence_length, of the run that saved "
        "it");
  }
  set_advantages_of_all();
}

}  // namespace dstrain
