#include "engine/train/objective/policy_gradient.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/core/plain_nan.h"

namespace dstrain {
namespace {

// What is summed beside the first two.
constexpr std::size_t kDivergence = 2;
constexpr std::size_t kTokens = 3;

struct Spread {
  double mean = 0.0;
  double deviation = 0.0;  // of a sample: the sum of squares by one less than their number
};

Spread spread_of(std::span<const Rollout> rollouts) {
  const auto count = static_cast<double>(rollouts.size());
  Spread spread;
  for (const Rollout& rollout : rollouts) {
    spread.mean += rollout.reward / count;
  }
  double squares = 0.0;
  for (const Rollout& rollout : rollouts) {
    squares += (rollout.reward - spread.mean) * (rollout.reward - spread.mean);
  }
  spread.deviation = rollouts.size() > 1 ? std::sqrt(squares / (count - 1.0)) : 0.0;
  return spread;
}

}  // namespace

void set_advantages(std::span<Rollout> rollouts, std::int64_t generations, RewardScale scale) {
  constexpr double kEpsilon = 1e-4;
  const double of_batch = spread_of(rollouts).deviation;
  const auto group_size = static_cast<std::size_t>(generations);
  for (std::size_t begin = 0; begin < rollouts.size(); begin += group_size) {
    const std::span<Rollout> group = rollouts.subspan(begin, group_size);
    const Spread spread = spread_of(group);
    const double by = scale == RewardScale::kNone    ? 1.0
                      : scale == RewardScale::kGroup ? spread.deviation + kEpsilon
                                                     : of_batch + kEpsilon;
    for (Rollout& rollout : group) {
      rollout.advantage = (rollout.reward - spread.mean) / by;
    }
  }
}

PolicyObjective::PolicyObjective(const RunPlan& plan,
                                 const PolicyConfig& config,
                                 const std::vector<Rollout>& rollouts)
    : config_(config), rollouts_(rollouts), scales_(plan), sequence_(plan.batch.sequence) {}

double PolicyObjective::gradient_scale(double loss_scale, const StepSize& /*step*/) const {
  return scales_.of_mean(loss_scale, denominator_);
}

double PolicyObjective::token_scale(double loss_scale, const StepSize& step) const {
  return scales_.of_mean(loss_scale, scales_.tokens(step));
}

std::int64_t PolicyObjective::targets(const StepSize& /*step*/) const {
  return denominator_;
}

double PolicyObjective::mean_loss(double loss_sum, std::int64_t counted) const {
  return plain_nan(loss_sum / static_cast<double>(std::max<std::int64_t>(counted, 1)));
}

bool PolicyObjective::trains(const Rollout& rollout) const {
  return !(config_.mask_truncated && rollout.is_truncated);
}

std::int64_t PolicyObjective::share_of(const Rollout& rollout) const {
  switch (config_.loss) {
    case PolicyLoss::kDapo:
      return trains(rollout) ? rollout.completion_tokens() : 0;
    case PolicyLoss::kGrpo:
      return 1;
    case PolicyLoss::kDrGrpo:
      return config_.completion_tokens;
  }
  return 1;
}

void PolicyObjective::begin_step(std::int64_t start_sample, std::int64_t /*samples*/) {
  sums_ = {};
  start_sample_ = start_sample;
  denominator_ = 0;
  for (const Rollout& rollout : rollouts_) {
    denominator_ += share_of(rollout);
  }
  denominator_ = std::max<std::int64_t>(denominator_, 1);
}

void PolicyObjective::weigh(const SequenceLosses& losses, std::span<float> weights_BT) {
  std::fill(weights_BT.begin(), weights_BT.end(), 0.0F);
  if (losses.use != BatchUse::kTraining) return;
  const auto T = static_cast<std::size_t>(sequence_);
  for (std::int64_t b = 0; b < losses.counted_samples; ++b) {
    const Rollout& rollout =
        rollouts_.at(static_cast<std::size_t>(losses.first_sample + b - start_sample_));
    sums_[1] += static_cast<double>(share_of(rollout));
    if (!trains(rollout)) continue;
    const std::int64_t tokens = rollout.completion_tokens();
    const double share = config_.loss == PolicyLoss::kGrpo
                             ? 1.0 / static_cast<double>(std::max<std::int64_t>(tokens, 1))
                             : 1.0;
    const auto first =
        static_cast<std::size_t>(b) * T + static_cast<std::size_t>(rollout.prompt_tokens - 1);
    for (std::int64_t token = 0; token < tokens; ++token) {
      const auto at = static_cast<std::size_t>(token);
      double loss = -rollout.advantage;
      double by_nats = rollout.advantage;
      if (!rollout.reference_nats.empty()) {
        const double likelier = static_cast<double>(losses.nats_BT[first + at]) -
                                static_cast<double>(rollout.reference_nats[at]);
        const double divergence = std::exp(likelier) - likelier - 1.0;
        loss += config_.beta * divergence;
        by_nats +=
            config_.beta * (config_.unbiased_divergence ? likelier : std::exp(likelier) - 1.0);
        sums_[kDivergence] += divergence;
      }
      sums_[0] += share * loss;
      sums_[kTokens] += 1.0;
      if (!weights_BT.empty()) weights_BT[first + at] = static_cast<float>(share * by_nats);
    }
  }
}

ObjectiveSums PolicyObjective::take_sums() {
  return std::exchange(sums_, {});
}

double PolicyObjective::divergence_of(const ObjectiveSums& sums) {
  return sums[kTokens] > 0.0 ? sums[kDivergence] / sums[kTokens] : 0.0;
}

}  // namespace dstrain
