// The objective of rewards (policy_config.h): of each token of a completion, -A times its
// probability by that which it had when it was sampled, which is 1 as completions are trained once,
// plus β times exp(d) - d - 1, where d is how much likelier the reference finds it (Schulman 2020,
// "Approximating KL divergence"), and, where it is to be unbiased, times that ratio as well: its
// derivative by the token's loss is then d in place of exp(d) - 1.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/config/policy_config.h"
#include "engine/train/objective/gradient_scales.h"
#include "engine/train/objective/objective.h"

namespace dstrain {

/// A completion that was sampled.
struct Rollout {
  std::vector<std::int32_t> ids;   ///< those of the prompt, then the completion's
  std::int64_t prompt_tokens = 0;  ///< at least one
  bool is_truncated = false;       ///< it was cut off before it ended
  double reward = 0.0;
  double advantage = 0.0;             ///< A
  std::vector<float> reference_nats;  ///< of the completion's tokens; empty without a reference

  [[nodiscard]] std::int64_t completion_tokens() const {
    return static_cast<std::int64_t>(ids.size()) - prompt_tokens;
  }
};

/// Sets the advantages of completions, of which `generations` neighbours are of one prompt.
void set_advantages(std::span<Rollout> rollouts, std::int64_t generations, RewardScale scale);

class PolicyObjective final : public WeighingObjective {
 public:
  /// `rollouts`: those of the step, by sample; it outlives this.
  PolicyObjective(const RunPlan& plan,
                  const PolicyConfig& config,
                  const std::vector<Rollout>& rollouts);

  [[nodiscard]] double gradient_scale(double loss_scale, const StepSize& step) const override;
  [[nodiscard]] double token_scale(double loss_scale, const StepSize& step) const override;
  [[nodiscard]] std::int64_t targets(const StepSize& step) const override;
  [[nodiscard]] double mean_loss(double loss_sum, std::int64_t counted) const override;

  void begin_step(std::int64_t start_sample, std::int64_t samples) override;
  void weigh(const SequenceLosses& losses, std::span<float> weights_BT) override;
  ObjectiveSums take_sums() override;

  /// The mean divergence of these sums, over all ranks, nats a token.
  [[nodiscard]] static double divergence_of(const ObjectiveSums& sums);

 private:
  /// Whether any of its tokens are trained.
  [[nodiscard]] bool trains(const Rollout& rollout) const;
  /// What a completion adds to the denominator.
  [[nodiscard]] std::int64_t share_of(const Rollout& rollout) const;

  PolicyConfig config_;
  const std::vector<Rollout>& rollouts_;
  GradientScales scales_;
  std::int64_t sequence_;
  std::int64_t start_sample_ = 0;
  std::int64_t denominator_ = 1;  // of the step
  ObjectiveSums sums_{};
};

}  // namespace dstrain
