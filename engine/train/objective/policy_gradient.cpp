#include "engine/train/objective/policy_gradient.h"

#include <algorithm>
#include <cmath>

namespace dstrain {
namespace {

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

void PolicyObjective::add(const Rollout& rollout, const Tokens& tokens, ObjectiveSums& sums) const {
  if (!trains(rollout)) return;
  const auto length = static_cast<double>(std::max<std::int64_t>(rollout.completion_tokens(), 1));
  const double share = config_.loss == PolicyLoss::kGrpo ? 1.0 / length : 1.0;
  for (std::size_t at = 0; at < tokens.nats.size(); ++at) {
    const auto nats = static_cast<double>(tokens.nats[at]);
    const double old = rollout.old_nats.empty() ? nats : static_cast<double>(rollout.old_nats[at]);
    ClippedLoss of_token = clipped_loss(nats, old, rollout.advantage, config_.clip_low,
                                        config_.clip_high.value_or(config_.clip_low));
    if (!rollout.reference_nats.empty()) {
      const double likelier = nats - static_cast<double>(rollout.reference_nats[at]);
      const bool unbiased = config_.unbiased_divergence;
      const double divergence =
          (std::exp(likelier) - likelier - 1.0) * (unbiased ? of_token.ratio : 1.0);
      of_token.loss += config_.beta * divergence;
      of_token.by_nats +=
          config_.beta * (unbiased ? of_token.ratio * likelier : std::exp(likelier) - 1.0);
      sums[kDivergence] += divergence;
    }
    sums[0] += share * of_token.loss;
    sums[kTokens] += 1.0;
    sums[kClipped] += of_token.is_clipped ? 1.0 : 0.0;
    if (!tokens.by_nats.empty()) tokens.by_nats[at] = static_cast<float>(share * of_token.by_nats);
  }
}

}  // namespace dstrain
