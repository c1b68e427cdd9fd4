#include "engine/train/objective/preferences.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/train/objective/pair_loss.h"
#include "kernels/core/plain_nan.h"

namespace dstrain {
namespace {

// What is summed beside the first two.
constexpr std::size_t kChosenReward = 2;
constexpr std::size_t kRejectedReward = 3;
constexpr std::size_t kRight = 4;

/// A pair of which a sequence's end left no token of an answer tells nothing.
template <typename Visit>
void for_each_pair(const std::vector<PlacedSample>& samples, Visit&& visit) {
  for (std::size_t i = 0; i + 1 < samples.size(); i += 2) {
    const PlacedSample& chosen = samples[i];
    const PlacedSample& rejected = samples[i + 1];
    if (!chosen.answers.empty() && !rejected.answers.empty()) visit(chosen, rejected);
  }
}

/// Every token but the last of a sample predicts the next.
std::int64_t num_targets(const PlacedSample& sample) {
  return sample.size - 1;
}

double sum_of(std::span<const float> nats, std::int64_t begin, std::int64_t end) {
  return std::accumulate(nats.begin() + begin, nats.begin() + end, 0.0);
}

}  // namespace

PreferenceObjective::PreferenceObjective(const RunPlan& plan,
                                         const PreferenceConfig& config,
                                         const PreferenceData& training,
                                         const PreferenceData& validation)
    : config_(config),
      training_(training),
      validation_(validation),
      scales_(plan),
      sequence_(plan.batch.sequence) {}

double PreferenceObjective::gradient_scale(double loss_scale, const StepSize& /*step*/) const {
  return scales_.of_mean(loss_scale, std::max<std::int64_t>(pairs_, 1));
}

double PreferenceObjective::token_scale(double loss_scale, const StepSize& step) const {
  return scales_.of_mean(loss_scale, scales_.tokens(step));
}

std::int64_t PreferenceObjective::targets(const StepSize& /*step*/) const {
  return std::max<std::int64_t>(pairs_, 1);
}

double PreferenceObjective::mean_loss(double loss_sum, std::int64_t counted) const {
  return plain_nan(loss_sum / static_cast<double>(std::max<std::int64_t>(counted, 1)));
}

void PreferenceObjective::begin_step(std::int64_t start_sample, std::int64_t samples) {
  sums_ = {};
  pairs_ = 0;
  chosen_tokens_ = 0;
  for (std::int64_t sample = start_sample; sample < start_sample + samples; ++sample) {
    for_each_pair(training_.pairs->samples(sample),
                  [&](const PlacedSample& chosen, const PlacedSample& /*rejected*/) {
                    pairs_ += 1;
                    chosen_tokens_ += num_targets(chosen);
                  });
  }
}

void PreferenceObjective::weigh(const SequenceLosses& losses, std::span<float> weights_BT) {
  std::fill(weights_BT.begin(), weights_BT.end(), 0.0F);
  const bool in_training = losses.use == BatchUse::kTraining;
  const auto T = static_cast<std::size_t>(sequence_);
  for (std::int64_t b = 0; b < losses.counted_samples; ++b) {
    const auto row = static_cast<std::size_t>(b) * T;
    weigh_sequence(in_training ? training_ : validation_, losses.first_sample + b, in_training,
                   losses.nats_BT.subspan(row, T),
                   weights_BT.empty() ? weights_BT : weights_BT.subspan(row, T));
  }
}

void PreferenceObjective::weigh_sequence(const PreferenceData& data,
                                         std::int64_t sample,
                                         bool in_training,
                                         std::span<const float> nats,
                                         std::span<float> weights) {
  const int source = data.first_source + data.pairs->draw(sample).source;
  const auto likelihood = [&](const PlacedSample& answer) {
    AnswerLikelihood found{.tokens = static_cast<double>(answer.num_answer_tokens())};
    for (const PlacedSample::Run& run : answer.answers) {
      found.log_probability -= sum_of(nats, run.begin, run.end);
    }
    if (data.reference != nullptr) found.reference = data.reference->of(source, answer.document);
    return found;
  };
  // The derivative by a target's loss is the negative of that by its log-probability.
  const auto add_to_answer = [&](const PlacedSample& answer, double by_log_probability) {
    if (weights.empty()) return;
    for (const PlacedSample::Run& run : answer.answers) {
      for (auto at = run.begin; at < run.end; ++at) {
        weights[static_cast<std::size_t>(at)] -= static_cast<float>(by_log_probability);
      }
    }
  };
  for_each_pair(data.pairs->samples(sample), [&](const PlacedSample& chosen,
                                                 const PlacedSample& rejected) {
    const AnswerLikelihood c = likelihood(chosen);
    const AnswerLikelihood r = likelihood(rejected);
    const PairLoss pair = pair_loss(config_, c, r);
    sums_[0] += pair.loss;
    sums_[1] += 1.0;
    add_to_answer(chosen, pair.by_chosen);
    add_to_answer(rejected, pair.by_rejected);
    const bool is_orpo = config_.loss == PreferenceLoss::kOrpo;
    const auto reward = [&](const AnswerLikelihood& answer) {
      return config_.beta * (is_orpo ? answer.log_probability / answer.tokens : answer.log_ratio());
    };
    sums_[kChosenReward] += reward(c);
    sums_[kRejectedReward] += reward(r);
    sums_[kRight] += reward(c) > reward(r) ? 1.0 : 0.0;
    if (!is_orpo) return;
    // The next token's loss is a mean over the tokens of all chosen samples, which is the mean over
    // pairs of this; in an evaluation, a pair's own mean counts.
    const double share = in_training
                             ? static_cast<double>(pairs_) / static_cast<double>(chosen_tokens_)
                             : 1.0 / static_cast<double>(num_targets(chosen));
    const std::int64_t end = chosen.begin + num_targets(chosen);
    sums_[0] += share * sum_of(nats, chosen.begin, end);
    for (auto at = chosen.begin; at < end && !weights.empty(); ++at) {
      weights[static_cast<std::size_t>(at)] += static_cast<float>(share);
    }
  });
}

ObjectiveSums PreferenceObjective::take_sums() {
  return std::exchange(sums_, {});
}

std::optional<PreferenceMetrics> PreferenceObjective::metrics_of(const ObjectiveSums& sums) {
  const double pairs = sums[1];
  if (pairs == 0.0) return std::nullopt;
  return PreferenceMetrics{.chosen_reward = sums[kChosenReward] / pairs,
                           .rejected_reward = sums[kRejectedReward] / pairs,
                           .accuracy = sums[kRight] / pairs};
}

}  // namespace dstrain
