#include "engine/train/objective/preferences.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/train/objective/preference_loss.h"
#include "kernels/core/plain_nan.h"

namespace dstrain {
namespace {

// What is summed beside the first two.
constexpr std::size_t kChosenReward = 2;
constexpr std::size_t kRejectedReward = 3;
constexpr std::size_t kRight = 4;
constexpr std::size_t kChosen = 5;      // answers
constexpr std::size_t kDivergence = 6;  // z, an answer

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
  return scales_.of_mean(loss_scale, std::max<std::int64_t>(groups_, 1));
}

double PreferenceObjective::token_scale(double loss_scale, const StepSize& step) const {
  return scales_.of_mean(loss_scale, scales_.tokens(step));
}

std::int64_t PreferenceObjective::targets(const StepSize& /*step*/) const {
  return std::max<std::int64_t>(groups_, 1);
}

double PreferenceObjective::mean_loss(double loss_sum, std::int64_t counted) const {
  return plain_nan(loss_sum / static_cast<double>(std::max<std::int64_t>(counted, 1)));
}

void PreferenceObjective::begin_step(std::int64_t start_sample, std::int64_t samples) {
  sums_ = {};
  groups_ = 0;
  chosen_tokens_ = 0;
  for (std::int64_t sample = start_sample; sample < start_sample + samples; ++sample) {
    for_each_group(training_.answers->samples(sample),
                   [&](const PlacedSample& chosen, const PlacedSample& /*other*/) {
                     groups_ += 1;
                     chosen_tokens_ += num_targets(chosen);
                   });
  }
}

/// What a sequence's end left no token of an answer of tells nothing.
template <typename Visit>
void PreferenceObjective::for_each_group(const std::vector<PlacedSample>& samples,
                                         Visit&& visit) const {
  const std::size_t each = config_.of_single_answers() ? 1 : 2;
  for (std::size_t i = 0; i + each <= samples.size(); i += each) {
    const PlacedSample& first = samples[i];
    const PlacedSample& last = samples[i + each - 1];
    if (!first.answers.empty() && !last.answers.empty()) visit(first, last);
  }
}

void PreferenceObjective::weigh(const SequenceLosses& losses, const SequenceWeights& to) {
  const std::span<float> weights_BT = to.nats_BT;
  std::fill(weights_BT.begin(), weights_BT.end(), 0.0F);
  const bool in_training = losses.use == BatchUse::kTraining;
  const auto T = static_cast<std::size_t>(sequence_);
  for (std::int64_t b = 0; b < losses.counted_samples; ++b) {
    const std::int64_t sample = losses.first_sample + b;
    const auto row = static_cast<std::size_t>(b) * T;
    const PreferenceData& data = in_training ? training_ : validation_;
    const Sequence sequence{.data = data,
                            .source = data.answers->draw(sample).source,
                            .in_training = in_training,
                            .nats = losses.found.nats_BT.subspan(row, T),
                            .weights = weights_BT.empty() ? weights_BT : weights_BT.subspan(row, T),
                            .are_scores = config_.of_scores()};
    for_each_group(data.answers->samples(sample),
                   [&](const PlacedSample& first, const PlacedSample& last) {
                     if (config_.of_single_answers()) return weigh_rated(first, sequence);
                     weigh_pair(first, last, sequence);
                   });
  }
}

AnswerLikelihood PreferenceObjective::Sequence::likelihood(const PlacedSample& answer) const {
  if (are_scores) {
    return {.log_probability = nats[static_cast<std::size_t>(answer.begin + answer.size - 1)]};
  }
  AnswerLikelihood found{.tokens = static_cast<double>(answer.num_answer_tokens())};
  for (const PlacedSample::Run& run : answer.answers) {
    found.log_probability -= sum_of(nats, run.begin, run.end);
  }
  if (data.reference != nullptr) {
    found.reference = data.reference->of(data.first_source + source, answer.document);
  }
  return found;
}

/// The derivative by a target's loss is the negative of that by its log-probability; that by a
/// score is its own.
void PreferenceObjective::Sequence::add(const PlacedSample& answer,
                                        double by_log_probability) const {
  if (weights.empty()) return;
  if (are_scores) {
    const auto last = static_cast<std::size_t>(answer.begin + answer.size - 1);
    weights[last] += static_cast<float>(by_log_probability);
    return;
  }
  for (const PlacedSample::Run& run : answer.answers) {
    for (auto at = run.begin; at < run.end; ++at) {
      weights[static_cast<std::size_t>(at)] -= static_cast<float>(by_log_probability);
    }
  }
}

void PreferenceObjective::weigh_rated(const PlacedSample& answer, const Sequence& sequence) {
  const AnswerLikelihood found = sequence.likelihood(answer);
  const RatedLoss rated = rated_loss(config_, found, answer.is_liked, divergence_);
  sequence.add(answer, rated.by_answer);
  sums_[0] += rated.loss;
  sums_[1] += 1.0;
  sums_[kChosen] += answer.is_liked ? 1.0 : 0.0;
  sums_[answer.is_liked ? kChosenReward : kRejectedReward] += config_.beta * found.log_ratio();
  sums_[kDivergence] += divergence_;
}

void PreferenceObjective::weigh_pair(const PlacedSample& chosen,
                                     const PlacedSample& rejected,
                                     const Sequence& sequence) {
  const AnswerLikelihood c = sequence.likelihood(chosen);
  const AnswerLikelihood r = sequence.likelihood(rejected);
  const PairLoss pair = pair_loss(config_, c, r);
  sequence.add(chosen, pair.by_chosen);
  sequence.add(rejected, pair.by_rejected);
  sums_[0] += pair.loss;
  sums_[1] += 1.0;
  sums_[kChosen] += 1.0;
  const bool is_orpo = config_.loss == PreferenceLoss::kOrpo;
  const auto reward = [&](const AnswerLikelihood& answer) {
    if (config_.of_scores()) return answer.log_probability;
    return config_.beta * (is_orpo ? answer.log_probability / answer.tokens : answer.log_ratio());
  };
  sums_[kChosenReward] += reward(c);
  sums_[kRejectedReward] += reward(r);
  sums_[kRight] += reward(c) > reward(r) ? 1.0 : 0.0;
  if (!is_orpo) return;
  // The next token's loss is a mean over the tokens of all chosen samples, which is the mean over
  // pairs of this; in an evaluation, a pair's own mean counts.
  const double share = sequence.in_training
                           ? static_cast<double>(groups_) / static_cast<double>(chosen_tokens_)
                           : 1.0 / static_cast<double>(num_targets(chosen));
  const std::int64_t end = chosen.begin + num_targets(chosen);
  sums_[0] += share * sum_of(sequence.nats, chosen.begin, end);
  for (auto at = chosen.begin; at < end && !sequence.weights.empty(); ++at) {
    sequence.weights[static_cast<std::size_t>(at)] += static_cast<float>(share);
  }
}

ObjectiveSums PreferenceObjective::take_sums() {
  return std::exchange(sums_, {});
}

std::optional<PreferenceMetrics> PreferenceObjective::metrics_of(const ObjectiveSums& sums,
                                                                 const PreferenceConfig& config) {
  const double groups = sums[1];
  if (groups == 0.0) return std::nullopt;
  const bool single = config.of_single_answers();
  const double chosen = sums[kChosen];
  const double rejected = single ? groups - chosen : groups;
  const auto mean = [](double sum, double count) {
    return count > 0.0 ? std::optional(sum / count) : std::nullopt;
  };
  return PreferenceMetrics{
      .chosen_reward = mean(sums[kChosenReward], chosen),
      .rejected_reward = mean(sums[kRejectedReward], rejected),
      .accuracy = single ? std::nullopt : mean(sums[kRight], groups),
      .divergence = config.needs_divergence() ? mean(sums[kDivergence], groups) : std::nullopt};
}

}  // namespace dstrain
