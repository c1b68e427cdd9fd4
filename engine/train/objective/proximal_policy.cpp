#include "engine/train/objective/proximal_policy.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace dstrain {
namespace {

using TokenNumbers = std::vector<std::vector<double>>;  // by completion, then by token

/// How far a completion's token has come from the reference, nats, estimated from this one sample.
double divergence_of(const Rollout& rollout, std::size_t token, DivergenceEstimate estimate) {
  if (rollout.reference_nats.empty()) return 0.0;
  const double likelier = static_cast<double>(rollout.old_nats[token]) -
                          static_cast<double>(rollout.reference_nats[token]);
  return estimate == DivergenceEstimate::kK1 ? -likelier : std::exp(likelier) - likelier - 1.0;
}

enum class Mean : std::uint8_t { kBecomesZero, kStays };

/// Gives the numbers a variance of 1, and, in one of two ways, a mean.
void whiten(TokenNumbers& numbers, Mean kept) {
  constexpr double kEpsilon = 1e-8;
  double count = 0.0;
  double mean = 0.0;
  for (const std::vector<double>& of_one : numbers) {
    for (const double number : of_one) {
      count += 1.0;
      mean += number;
    }
  }
  if (count < 2.0) return;
  mean /= count;
  double squares = 0.0;
  for (const std::vector<double>& of_one : numbers) {
    for (const double number : of_one) {
      squares += (number - mean) * (number - mean);
    }
  }
  const double deviation = std::sqrt(squares / (count - 1.0) + kEpsilon);
  for (std::vector<double>& of_one : numbers) {
    for (double& number : of_one) {
      number = (number - mean) / deviation + (kept == Mean::kStays ? mean : 0.0);
    }
  }
}

std::vector<float> rounded(const std::vector<double>& numbers) {
  return {numbers.begin(), numbers.end()};
}

}  // namespace

void set_token_advantages(std::span<Rollout> rollouts, const PpoConfig& config) {
  TokenNumbers rewards;
  for (const Rollout& rollout : rollouts) {
    std::vector<double>& of_tokens = rewards.emplace_back();
    for (std::size_t token = 0; token < rollout.old_nats.size(); ++token) {
      of_tokens.push_back(-config.beta * divergence_of(rollout, token, config.estimate));
    }
    const double penalty = rollout.is_truncated ? config.missing_end_penalty.value_or(0.0) : 0.0;
    if (!of_tokens.empty()) of_tokens.back() += rollout.reward - penalty;
  }
  if (config.whiten_rewards) whiten(rewards, Mean::kStays);
  TokenNumbers advantages = rewards;
  for (std::size_t i = 0; i < rollouts.size(); ++i) {
    Rollout& rollout = rollouts[i];
    std::vector<double> returns(rewards[i].size());
    double next_value = 0.0;
    double next_advantage = 0.0;
    for (std::size_t token = returns.size(); token-- > 0;) {
      const auto value = static_cast<double>(rollout.old_values[token]);
      const double surprise = rewards[i][token] + config.discount * next_value - value;
      next_advantage = surprise + config.discount * config.lambda * next_advantage;
      next_value = value;
      advantages[i][token] = next_advantage;
      returns[token] = next_advantage + value;
    }
    rollout.returns = rounded(returns);
  }
  whiten(advantages, Mean::kBecomesZero);
  for (std::size_t i = 0; i < rollouts.size(); ++i) {
    const auto count = static_cast<double>(std::max<std::size_t>(advantages[i].size(), 1));
    rollouts[i].advantages = rounded(advantages[i]);
    rollouts[i].advantage = 0.0;
    for (const double advantage : advantages[i]) {
      rollouts[i].advantage += advantage / count;
    }
  }
}

void ProximalPolicyObjective::add(const Rollout& rollout,
                                  const Tokens& tokens,
                                  ObjectiveSums& sums) const {
  for (std::size_t at = 0; at < tokens.nats.size(); ++at) {
    const ClippedLoss policy = clipped_loss(
        static_cast<double>(tokens.nats[at]), static_cast<double>(rollout.old_nats[at]),
        static_cast<double>(rollout.advantages[at]), config_.clip, config_.clip);
    const auto value = static_cast<double>(tokens.values[at]);
    const auto old = static_cast<double>(rollout.old_values[at]);
    const double error = value - static_cast<double>(rollout.returns[at]);
    const double near = std::clamp(value, old - config_.value_clip, old + config_.value_clip) -
                        static_cast<double>(rollout.returns[at]);
    const bool is_held = near * near > error * error;
    const double value_loss = 0.5 * (is_held ? near * near : error * error);
    sums[0] += policy.loss + config_.value_weight * value_loss;
    sums[kDivergence] += divergence_of(rollout, at, config_.estimate);
    sums[kTokens] += 1.0;
    sums[kClipped] += policy.is_clipped ? 1.0 : 0.0;
    sums[kValueLoss] += value_loss;
    if (tokens.by_nats.empty()) continue;
    tokens.by_nats[at] = static_cast<float>(policy.by_nats);
    tokens.by_values[at] = static_cast<float>(is_held ? 0.0 : config_.value_weight * error);
  }
}

}  // namespace dstrain
