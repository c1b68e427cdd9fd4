#include "engine/train/objective/rollout.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/core/plain_nan.h"

namespace dstrain {

ClippedLoss clipped_loss(double nats, double old_nats, double advantage, double low, double high) {
  const double ratio = std::exp(old_nats - nats);
  const double clipped = std::clamp(ratio, 1.0 - low, 1.0 + high);
  if (clipped * advantage < ratio * advantage) {
    return {.loss = -clipped * advantage, .by_nats = 0.0, .ratio = ratio, .is_clipped = true};
  }
  return {.loss = -ratio * advantage,
          .by_nats = ratio * advantage,
          .ratio = ratio,
          .is_clipped = false};
}

RolloutObjective::RolloutObjective(const RunPlan& plan, const std::vector<Rollout>& rollouts)
    : rollouts_(rollouts), scales_(plan), sequence_(plan.batch.sequence) {}

double RolloutObjective::gradient_scale(double loss_scale, const StepSize& /*step*/) const {
  return scales_.of_mean(loss_scale, denominator_);
}

double RolloutObjective::token_scale(double loss_scale, const StepSize& step) const {
  return scales_.of_mean(loss_scale, scales_.tokens(step));
}

std::int64_t RolloutObjective::targets(const StepSize& /*step*/) const {
  return denominator_;
}

double RolloutObjective::mean_loss(double loss_sum, std::int64_t counted) const {
  return plain_nan(loss_sum / static_cast<double>(std::max<std::int64_t>(counted, 1)));
}

void RolloutObjective::begin_step(std::int64_t start_sample, std::int64_t /*samples*/) {
  sums_ = {};
  start_sample_ = start_sample;
  denominator_ = 0;
  for (const Rollout& rollout : rollouts_) {
    denominator_ += share_of(rollout);
  }
  denominator_ = std::max<std::int64_t>(denominator_, 1);
}

void RolloutObjective::weigh(const SequenceLosses& losses, const SequenceWeights& weights) {
  for (const std::span<float> all : {weights.nats_BT, weights.values_BT}) {
    std::fill(all.begin(), all.end(), 0.0F);
  }
  if (losses.use != BatchUse::kTraining) return;
  for (std::int64_t b = 0; b < losses.counted_samples; ++b) {
    const Rollout& rollout =
        rollouts_.at(static_cast<std::size_t>(losses.first_sample + b - start_sample_));
    const auto first = static_cast<std::size_t>(b * sequence_ + rollout.prompt_tokens - 1);
    const auto of_completion = [&](auto all) {
      return all.empty()
                 ? all
                 : all.subspan(first, static_cast<std::size_t>(rollout.completion_tokens()));
    };
    sums_[1] += static_cast<double>(share_of(rollout));
    add(rollout,
        {.nats = of_completion(losses.found.nats_BT),
         .values = of_completion(losses.found.values_BT),
         .by_nats = of_completion(weights.nats_BT),
         .by_values = of_completion(weights.values_BT)},
        sums_);
  }
}

ObjectiveSums RolloutObjective::take_sums() {
  return std::exchange(sums_, {});
}

RolloutMeans RolloutObjective::means_of(const ObjectiveSums& sums) {
  const double tokens = std::max(sums[kTokens], 1.0);
  return {.divergence = sums[kDivergence] / tokens,
          .clipped = sums[kClipped] / tokens,
          .value_loss = sums[kValueLoss] / tokens};
}

}  // namespace dstrain
