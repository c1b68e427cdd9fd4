// The objective of preferences: the mean, over the pairs or the rated answers of a step, of a loss
// of how likely the model finds the answers, beside how likely a reference found them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/config/preference_config.h"
#include "engine/data/batch_loader.h"
#include "engine/train/objective/gradient_scales.h"
#include "engine/train/objective/objective.h"
#include "engine/train/objective/preference_loss.h"
#include "engine/train/objective/reference_log_probabilities.h"
#include "engine/train/step_metrics.h"

namespace dstrain {

/// Answers, and what the reference finds of them; nullptr: there is no reference.
struct PreferenceData {
  const BatchLoader* answers = nullptr;
  const ReferenceLogProbabilities* reference = nullptr;
  int first_source = 0;  ///< the reference's, of the answers' first
};

class PreferenceObjective final : public WeighingObjective {
 public:
  /// What is pointed to outlives it. `validation`: without answers where nothing is evaluated.
  PreferenceObjective(const RunPlan& plan,
                      const PreferenceConfig& config,
                      const PreferenceData& training,
                      const PreferenceData& validation);

  [[nodiscard]] double gradient_scale(double loss_scale, const StepSize& step) const override;
  [[nodiscard]] double token_scale(double loss_scale, const StepSize& step) const override;
  [[nodiscard]] std::int64_t targets(const StepSize& step) const override;
  [[nodiscard]] double mean_loss(double loss_sum, std::int64_t counted) const override;

  void begin_step(std::int64_t start_sample, std::int64_t samples) override;
  void weigh(const SequenceLosses& losses, const SequenceWeights& to) override;
  ObjectiveSums take_sums() override;

  /// How far the model has moved away from the reference, for the losses that follow: z, nats.
  void set_divergence(double nats) { divergence_ = nats; }

  /// The metrics of these sums, over all ranks; nothing where there were no answers.
  [[nodiscard]] static std::optional<PreferenceMetrics> metrics_of(const ObjectiveSums& sums,
                                                                   const PreferenceConfig& config);

 private:
  /// One of them, whose targets `nats` and `weights` are of.
  struct Sequence {
    const PreferenceData& data;
    int source;  // of data's answers
    bool in_training;
    std::span<const float> nats;
    std::span<float> weights;  // or empty
    bool are_scores;           // `nats` are

    [[nodiscard]] AnswerLikelihood likelihood(const PlacedSample& answer) const;
    /// Adds the derivative by an answer's log-probability.
    void add(const PlacedSample& answer, double by_log_probability) const;
  };
  void weigh_pair(const PlacedSample& chosen,
                  const PlacedSample& rejected,
                  const Sequence& sequence);
  void weigh_rated(const PlacedSample& answer, const Sequence& sequence);
  /// Calls visit(pair of samples), or visit(rated answer, itself), of each that has what is needed.
  template <typename Visit>
  void for_each_group(const std::vector<PlacedSample>& samples, Visit&& visit) const;

  PreferenceConfig config_;
  PreferenceData training_;
  PreferenceData validation_;
  GradientScales scales_;
  std::int64_t sequence_;
  double divergence_ = 0.0;
  std::int64_t groups_ = 0;         // pairs, or rated answers, of the step
  std::int64_t chosen_tokens_ = 0;  // targets in the step's chosen samples
  ObjectiveSums sums_{};
};

}  // namespace dstrain
