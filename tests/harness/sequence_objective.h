// SequenceObjective: something to minimise that depends on all targets of a sequence together, for
// tests of how losses, or scores, and weights travel.
#pragma once

#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/train/objective/gradient_scales.h"
#include "engine/train/objective/objective.h"

namespace dstrain::test {

/// The mean over sequences of m²/2 + m, where m is the mean over a sequence's tokens.
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
  void weigh(const SequenceLosses& losses, std::span<float> weights_BT) override {
    const auto T = static_cast<std::size_t>(sequence_);
    for (std::size_t row = 0; row * T < losses.nats_BT.size(); ++row) {
      const auto nats = losses.nats_BT.subspan(row * T, T);
      const double mean =
          std::accumulate(nats.begin(), nats.end(), 0.0) / static_cast<double>(sequence_);
      sums_[0] += mean * mean / 2.0 + mean;
      sums_[1] += 1.0;
      if (weights_BT.empty()) continue;
      const auto weights = weights_BT.subspan(row * T, T);
      std::fill(weights.begin(), weights.end(),
                static_cast<float>((mean + 1.0) / static_cast<double>(sequence_)));
    }
  }
  ObjectiveSums take_sums() override { return std::exchange(sums_, {}); }

 private:
  GradientScales scales_;
  std::int64_t sequence_;
  std::int64_t samples_;
  ObjectiveSums sums_{};
};

}  // namespace dstrain::test
