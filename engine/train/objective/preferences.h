// The objective of preferences: the mean, over the pairs of a step, of a loss of how likely the
// model finds the chosen and the rejected answer, beside how likely a reference found them.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/config/preference_config.h"
#include "engine/data/batch_loader.h"
#include "engine/train/objective/gradient_scales.h"
#include "engine/train/objective/objective.h"
#include "engine/train/objective/reference_log_probabilities.h"
#include "engine/train/step_metrics.h"

namespace dstrain {

/// Pairs, and what the reference finds of them; nullptr: there is no reference.
struct PreferenceData {
  const BatchLoader* pairs = nullptr;
  const ReferenceLogProbabilities* reference = nullptr;
  int first_source = 0;  ///< the reference's, of the pairs' first
};

class PreferenceObjective final : public WeighingObjective {
 public:
  /// What is pointed to outlives it. `validation`: without pairs where nothing is evaluated.
  PreferenceObjective(const RunPlan& plan,
                      const PreferenceConfig& config,
                      const PreferenceData& training,
                      const PreferenceData& validation);

  [[nodiscard]] double gradient_scale(double loss_scale, const StepSize& step) const override;
  [[nodiscard]] double token_scale(double loss_scale, const StepSize& step) const override;
  [[nodiscard]] std::int64_t targets(const StepSize& step) const override;
  [[nodiscard]] double mean_loss(double loss_sum, std::int64_t counted) const override;

  void begin_step(std::int64_t start_sample, std::int64_t samples) override;
  void weigh(const SequenceLosses& losses, std::span<float> weights_BT) override;
  ObjectiveSums take_sums() override;

  /// Nothing where there were no pairs.
  static std::optional<PreferenceMetrics> metrics_of(const ObjectiveSums& sums);

 private:
  /// One sequence: `nats` and `weights` are of its targets.
  void weigh_sequence(const PreferenceData& data,
                      std::int64_t sample,
                      bool in_training,
                      std::span<const float> nats,
                      std::span<float> weights);

  PreferenceConfig config_;
  PreferenceData training_;
  PreferenceData validation_;
  GradientScales scales_;
  std::int64_t sequence_;
  std::int64_t pairs_ = 0;          // of the step
  std::int64_t chosen_tokens_ = 0;  // targets in the step's chosen samples
  ObjectiveSums sums_{};
};

}  // namespace dstrain
