// The objective of "ppo" (policy_config.h): of each token of a completion the clipped loss of the
// token's advantage (rollout.h), plus a weight times half of max((V - R)², (clip(V) - R)²), where V
// is the value before the token, R the return, and V counts as far as it is from what it was when
// the completion was sampled (Schulman et al. 2017; the clipping of values as in OpenAI's and TRL's
// trainers).
//
// The reward of a token is -β times the estimated divergence from the reference; that of the last
// one has the completion's reward as well. With V = 0 behind the last token,
//   δ_t = r_t + γ V_{t+1} - V_t,   A_t = δ_t + γ λ A_{t+1}
// (Schulman et al. 2016, "High-Dimensional Continuous Control Using Generalized Advantage
// Estimation", eq. 16). R = A + V; then A is whitened over all tokens that were sampled at once.
#pragma once

#include <span>
#include <vector>

#include "engine/config/policy_config.h"
#include "engine/train/objective/rollout.h"

namespace dstrain {

/// Sets advantages and returns, from rewards, old_nats, old_values and reference_nats.
void set_token_advantages(std::span<Rollout> rollouts, const PpoConfig& config);

class ProximalPolicyObjective final : public RolloutObjective {
 public:
  ProximalPolicyObjective(const RunPlan& plan,
                          const PpoConfig& config,
                          const std::vector<Rollout>& rollouts)
      : RolloutObjective(plan, rollouts), config_(config) {}

 private:
  [[nodiscard]] std::int64_t share_of(const Rollout& rollout) const override {
    return rollout.completion_tokens();
  }
  void add(const Rollout& rollout, const Tokens& tokens, ObjectiveSums& sums) const override;

  PpoConfig config_;
};

}  // namespace dstrain
