// The objective of "grpo" (policy_config.h): of each token of a completion the clipped loss of the
// completion's advantage (rollout.h), plus β times exp(d) - d - 1, where d is how much likelier the
// reference finds it (Schulman 2020, "Approximating KL divergence"), and, where that is to be
// unbiased, times the ratio r as well: its derivative by the token's loss is then r d in place of
// exp(d) - 1. Where completions are trained but once, by the model that wrote them, r is 1.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/config/policy_config.h"
#include "engine/train/objective/rollout.h"

namespace dstrain {

/// Sets the advantages of completions, of which `generations` neighbours are of one prompt.
void set_advantages(std::span<Rollout> rollouts, std::int64_t generations, RewardScale scale);

class PolicyObjective final : public RolloutObjective {
 public:
  PolicyObjective(const RunPlan& plan,
                  const PolicyConfig& config,
                  const std::vector<Rollout>& rollouts)
      : RolloutObjective(plan, rollouts), config_(config) {}

 private:
  /// Whether any of its tokens are trained.
  [[nodiscard]] bool trains(const Rollout& rollout) const;
  [[nodiscard]] std::int64_t share_of(const Rollout& rollout) const override;
  void add(const Rollout& rollout, const Tokens& tokens, ObjectiveSums& sums) const override;

  PolicyConfig config_;
};

}  // namespace dstrain
