// Rollout: a completion that was sampled and rewarded. RolloutObjective: what is minimised of
// completions, where it is a sum over their tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/train/objective/gradient_scales.h"
#include "engine/train/objective/objective.h"

namespace dstrain {

struct Rollout {
  std::vector<std::int32_t> ids{};  ///< those of the prompt, then the completion's
  std::int64_t prompt_tokens = 0;   ///< at least one
  bool is_truncated = false;        ///< it was cut off before it ended
  double reward = 0.0;
  double advantage = 0.0;  ///< A; of "ppo", the mean of its tokens'

  // One number for each of the completion's tokens:
  std::vector<float> reference_nats{};  ///< by the reference; empty without one
  std::vector<float> old_nats{};  ///< when it was sampled; empty where it is trained but once, then
  std::vector<float> old_values{};  ///< likewise: V before the token ("ppo")
  std::vector<float> advantages{};  ///< of "ppo"
  std::vector<float> returns{};     ///< what V is to become: A + V, before A was whitened

  [[nodiscard]] std::int64_t completion_tokens() const {
    return static_cast<std::int64_t>(ids.size()) - prompt_tokens;
  }
};

/// -min(r A, clip(r) A), where r is a token's probability by that which it had when it was sampled
/// (Schulman et al. 2017, "Proximal Policy Optimization Algorithms", eq. 7).
struct ClippedLoss {
  double loss;
  double by_nats;   ///< its derivative by the token's loss
  double ratio;     ///< r
  bool is_clipped;  ///< so that the derivative is 0
};
/// r counts from 1 - `low` to 1 + `high`.
ClippedLoss clipped_loss(double nats, double old_nats, double advantage, double low, double high);

/// Means over the tokens that a step trained.
struct RolloutMeans {
  double divergence = 0.0;  ///< from the reference, nats
  double clipped = 0.0;     ///< the share whose ratio is clipped
  double value_loss = 0.0;
};

class RolloutObjective : public WeighingObjective {
 public:
  /// `rollouts`: those of the step, by sample; it outlives this.
  RolloutObjective(const RunPlan& plan, const std::vector<Rollout>& rollouts);

  [[nodiscard]] double gradient_scale(double loss_scale, const StepSize& step) const override;
  [[nodiscard]] double token_scale(double loss_scale, const StepSize& step) const override;
  [[nodiscard]] std::int64_t targets(const StepSize& step) const override;
  [[nodiscard]] double mean_loss(double loss_sum, std::int64_t counted) const override;

  void begin_step(std::int64_t start_sample, std::int64_t samples) override;
  void weigh(const SequenceLosses& losses, const SequenceWeights& weights) override;
  ObjectiveSums take_sums() override;

  /// From the sums of all ranks.
  static RolloutMeans means_of(const ObjectiveSums& sums);

 protected:
  // What is summed beside the first two.
  static constexpr std::size_t kDivergence = 2;
  static constexpr std::size_t kTokens = 3;
  static constexpr std::size_t kClipped = 4;
  static constexpr std::size_t kValueLoss = 5;

  /// The numbers found for a completion's tokens, and the places of their weights.
  struct Tokens {
    std::span<const float> nats;
    std::span<const float> values;  ///< V before each; empty where there is no head of values
    std::span<float> by_nats;       ///< the derivatives, to be set; or empty
    std::span<float> by_values;     ///< likewise
  };
  /// What a completion adds to the number that the sum is divided by.
  [[nodiscard]] virtual std::int64_t share_of(const Rollout& rollout) const = 0;
  /// Adds what is minimised of it, and what is counted, to the sums.
  virtual void add(const Rollout& rollout, const Tokens& tokens, ObjectiveSums& sums) const = 0;

 private:
  const std::vector<Rollout>& rollouts_;
  GradientScales scales_;
  std::int64_t sequence_;
  std::int64_t start_sample_ = 0;
  std::int64_t denominator_ = 1;  // of the step
  ObjectiveSums sums_{};
};

}  // namespace dstrain
