// SequenceObjective: something to minimise that depends on all targets of a sequence together, for
// tests of how losses, or scores, and weights travel.
#pragma once

#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/train/objective/gradient_scales.h"
#include "engine/train/objective/objective.h"

namespace dstrain::test {

/// The mean over sequences of m²/2 + m, where m is the mean over a sequence's tokens; of losses or
/// scores, and of values where there are some.
class SequenceObjective final : public WeighingObjective {
 public:
  explicit SequenceObjective(const RunPlan& plan)
      : scales_(plan), sequence_(plan.batch.sequence), samples_(plan.batch.global_samples()) {}

  [[nodiscard]] double gradient_scale(double loss_scale, const StepSize& /*step*/) const override {
    return scales_.of_mean(loss_scale, samples_);
  }
  [[nodiscard]] double token_scale(double loss_scale, const StepSize& step) const override {
    return scales_.of_mean(loss_scale, scales_.tokens(step));
  }
  [[nodiscard]] std::int64_t targets(const StepSize& /*step*/) const override { return samples_; }
  [[nodiscard]] double mean_loss(double loss_sum, std::int64_t counted) const override {
    return loss_sum / static_cast<double>(counted);
  }
  void begin_step(std::int64_t /*start_sample*/, std::int64_t samples) override {
    samples_ = samples;
    sums_ = {};
  }
  void weigh(const SequenceLosses& losses, const SequenceWeights& weights) override {
    sums_[1] += static_cast<double>(losses.found.nats_BT.size()) / static_cast<double>(sequence_);
    weigh(losses.found.nats_BT, weights.nats_BT);
    weigh(losses.found.values_BT, weights.values_BT);
  }
  ObjectiveSums take_sums() override { return std::exchange(sums_, {}); }

 private:
  void weigh(std::span<const float> numbers_BT, std::span<float> weights_BT) {
    const auto T = static_cast<std::size_t>(sequence_);
    for (std::size_t row = 0; row * T < numbers_BT.size(); ++row) {
      const auto numbers = numbers_BT.subspan(row * T, T);
      const double mean =
          std::accumulate(numbers.begin(), numbers.end(), 0.0) / static_cast<double>(sequence_);
      sums_[0] += mean * mean / 2.0 + mean;
      if (weights_BT.empty()) continue;
      const auto weights = weights_BT.subspan(row * T, T);
      std::fill(weights.begin(), weights.end(),
                static_cast<float>((mean + 1.0) / static_cast<double>(sequence_)));
    }
  }

  GradientScales scales_;
  std::int64_t sequence_;
  std::int64_t samples_;
  ObjectiveSums sums_{};
};

}  // namespace dstrain::test
