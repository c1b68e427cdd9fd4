#include "engine/train/records/curves.h"

namespace dstrain {
namespace {

using Value = std::optional<double>;

const RankMemory* fullest(const StepMetrics& m) {
  return m.memory.empty() ? nullptr : &m.memory[fullest_rank(m.memory)];
}

Value dropped_share(const StepMetrics& m) {
  const auto dropped = dropped_choices(m.routing);
  return dropped ? Value(dropped->share) : std::nullopt;
}

Value of_pairs(const std::optional<PreferenceMetrics>& metrics, Value PreferenceMetrics::*member) {
  return metrics ? (*metrics).*member : std::nullopt;
}

Value bytes(const StepMetrics& m, std::int64_t RankMemory::*member) {
  const RankMemory* const memory = fullest(m);
  return memory == nullptr ? std::nullopt : Value(static_cast<double>(memory->*member));
}

}  // namespace

const std::vector<Curve>& curves() {
  using M = StepMetrics;
  static const std::vector<Curve> all = {
      {"train/loss", "mean over the step's tokens, nats",
       [](const M& m) -> Value { return m.loss; }},
      {"train/chosen_reward", "of the step's chosen answers, their mean",
       [](const M& m) { return of_pairs(m.preferences, &PreferenceMetrics::chosen_reward); }},
      {"train/rejected_reward", "of the step's rejected answers, their mean",
       [](const M& m) { return of_pairs(m.preferences, &PreferenceMetrics::rejected_reward); }},
      {"train/preference_accuracy", "share of pairs whose chosen answer has the higher reward",
       [](const M& m) { return of_pairs(m.preferences, &PreferenceMetrics::accuracy); }},
      {"train/divergence", "from the reference, nats",
       [](const M& m) { return of_pairs(m.preferences, &PreferenceMetrics::divergence); }},
      {"train/learning_rate", "of the step", [](const M& m) -> Value { return m.learning_rate; }},
      {"train/grad_norm", "L2 norm of all gradients, before clipping",
       [](const M& m) -> Value { return m.grad_norm; }},
      {"train/loss_scale", "that gradients were multiplied by in backward",
       [](const M& m) -> Value { return m.loss_scale; }},
      {"train/skipped", "1: gradients were not finite, and nothing was updated",
       [](const M& m) -> Value { return m.skipped ? 1.0 : 0.0; }},
      {"train/tokens", "seen since step 0",
       [](const M& m) -> Value { return static_cast<double>(m.tokens); }},
      {"train/batch_size", "sequences of the step",
       [](const M& m) -> Value { return static_cast<double>(m.batch_size); }},
      {"train/sequence_length", "tokens of each",
       [](const M& m) -> Value { return static_cast<double>(m.sequence_length); }},
      {"train/reward", "mean of the step's completions",
       [](const M& m) -> Value { return m.policy ? Value(m.policy->reward) : std::nullopt; }},
      {"train/completion_tokens", "mean of the step's completions",
       [](const M& m) -> Value {
         return m.policy ? Value(m.policy->completion_tokens) : std::nullopt;
       }},
      {"train/divergence", "from the reference, nats per token of completions",
       [](const M& m) -> Value { return m.policy ? m.policy->divergence : std::nullopt; }},
      {"train/clipped", "share of completions' tokens whose ratio of probabilities is clipped",
       [](const M& m) -> Value { return m.policy ? m.policy->clipped : std::nullopt; }},
      {"train/value_loss", "of the head of values",
       [](const M& m) -> Value { return m.policy ? m.policy->value_loss : std::nullopt; }},
      {"eval/loss", "validation loss, nats per token",
       [](const M& m) -> Value { return m.validation_loss; }},
      {"eval/token_accuracy", "share of validation targets that were the likeliest tokens",
       [](const M& m) -> Value { return m.validation_token_accuracy; }},
      {"eval/preference_accuracy", "share of pairs whose chosen answer has the higher reward",
       [](const M& m) { return of_pairs(m.validation_preferences, &PreferenceMetrics::accuracy); }},
      {"speed/tokens_per_second", "of all ranks",
       [](const M& m) -> Value { return m.tokens_per_second; }},
      {"speed/model_flops_per_second", "of all ranks",
       [](const M& m) -> Value { return m.model_flops_per_second; }},
      {"speed/model_flops_utilization", "share of the devices' data sheets",
       [](const M& m) -> Value { return m.model_flops_utilization; }},
      {"seconds/step", "on rank 0, as all that follow",
       [](const M& m) -> Value { return m.step_seconds; }},
      {"seconds/data", "waiting for the next batch",
       [](const M& m) -> Value { return m.phases.data; }},
      {"seconds/forward", "in forward", [](const M& m) -> Value { return m.phases.forward; }},
      {"seconds/backward", "in backward", [](const M& m) -> Value { return m.phases.backward; }},
      {"seconds/optimizer", "in the update",
       [](const M& m) -> Value { return m.phases.optimizer; }},
      {"seconds/communication", "spent waiting for other ranks, a part of the others",
       [](const M& m) -> Value { return m.phases.communication; }},
      {"seconds/evaluation", "after the step",
       [](const M& m) -> Value {
         return m.validation_loss ? Value(m.evaluation_seconds) : std::nullopt;
       }},
      {"seconds/checkpoint", "that training stood still for saves before the step",
       [](const M& m) -> Value { return m.checkpoint_seconds; }},
      {"memory/planned_bytes", "on the rank that holds most, as all that follow",
       [](const M& m) { return bytes(m, &RankMemory::planned_bytes); }},
      {"memory/overhead_bytes", "expected beside what is planned",
       [](const M& m) { return bytes(m, &RankMemory::overhead_bytes); }},
      {"memory/measured_bytes", "now",
       [](const M& m) { return bytes(m, &RankMemory::measured_bytes); }},
      {"memory/peak_bytes", "the most so far",
       [](const M& m) { return bytes(m, &RankMemory::peak_bytes); }},
      {"device/lowest_compute_mhz", "of all ranks",
       [](const M& m) { return summarize(m.devices).lowest_compute_mhz; }},
      {"device/highest_celsius", "of all ranks",
       [](const M& m) { return summarize(m.devices).highest_celsius; }},
      {"device/total_watts", "of all ranks",
       [](const M& m) { return summarize(m.devices).total_watts; }},
      {"experts/balance_loss", "mean of the layers, without its coefficient",
       [](const M& m) -> Value { return mean_balance_loss(m.routing); }},
      {"experts/z_loss", "mean of the layers, without its coefficient",
       [](const M& m) -> Value { return mean_z_loss(m.routing); }},
      {"experts/busiest", "tokens of the busiest expert over the mean of its layer",
       [](const M& m) -> Value {
         return m.routing.empty() ? std::nullopt : Value(busiest_of(m.routing));
       }},
      {"experts/dropped", "share of the choices that found an expert full", dropped_share},
  };
  return all;
}

const std::vector<Curve>& deepspeed_curves() {
  using M = StepMetrics;
  static const std::vector<Curve> all = {
      {"Train/Samples/train_loss", "mean over the step's tokens, nats",
       [](const M& m) -> Value { return m.loss; }},
      {"Train/Samples/lr", "of the step", [](const M& m) -> Value { return m.learning_rate; }},
      {"Train/Samples/loss_scale", "that gradients were multiplied by in backward",
       [](const M& m) -> Value { return m.loss_scale; }},
  };
  return all;
}

}  // namespace dstrain
