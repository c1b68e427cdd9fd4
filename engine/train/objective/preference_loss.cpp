#include "engine/train/objective/preference_loss.h"

#include <algorithm>
#include <cmath>

namespace dstrain {
namespace {

double logistic(double x) {
  return x < 0.0 ? std::exp(x) / (1.0 + std::exp(x)) : 1.0 / (1.0 + std::exp(-x));
}

double log_logistic(double x) {
  return std::min(x, 0.0) - std::log1p(std::exp(-std::abs(x)));
}

/// The derivative of logistic().
double logistic_slope(double x) {
  return logistic(x) * logistic(-x);
}

/// A loss of the difference of two numbers, with its derivative by the first.
PairLoss of_difference(double loss, double slope) {
  return {.loss = loss, .by_chosen = slope, .by_rejected = -slope};
}

/// log(p / (1 - p)) of p = e^l, and its derivative 1 / (1 - p) by l.
struct LogOdds {
  double value;
  double slope;
};
LogOdds log_odds(double l) {
  const double rest = -std::expm1(std::min(l, -1e-12));  // 1 - p
  return {.value = l - std::log(rest), .slope = 1.0 / rest};
}

}  // namespace

PairLoss pair_loss(const PreferenceConfig& config,
                   const AnswerLikelihood& chosen,
                   const AnswerLikelihood& rejected) {
  const double beta = config.beta;
  const double c = beta * chosen.log_ratio();
  const double r = beta * rejected.log_ratio();
  const double d = c - r;
  switch (config.loss) {
    case PreferenceLoss::kNone:
    case PreferenceLoss::kKto:
    case PreferenceLoss::kApoZeroUnpaired:
      break;
    case PreferenceLoss::kSigmoid:
      return of_difference(-log_logistic(d), -beta * logistic(-d));
    case PreferenceLoss::kHinge:
      return of_difference(std::max(0.0, 1.0 - d), d < 1.0 ? -beta : 0.0);
    case PreferenceLoss::kIpo: {
      const double away = chosen.log_ratio() / chosen.tokens -
                          rejected.log_ratio() / rejected.tokens - 1.0 / (2.0 * beta);
      return {.loss = away * away,
              .by_chosen = 2.0 * away / chosen.tokens,
              .by_rejected = -2.0 * away / rejected.tokens};
    }
    case PreferenceLoss::kRobust: {
      const double e = config.label_smoothing;
      const double share = 1.0 / (1.0 - 2.0 * e);
      return of_difference(share * (-(1.0 - e) * log_logistic(d) + e * log_logistic(-d)),
                           -share * beta * ((1.0 - e) * logistic(-d) + e * logistic(d)));
    }
    case PreferenceLoss::kApoZero:
      return {.loss = logistic(-c) + logistic(r),
              .by_chosen = -beta * logistic_slope(c),
              .by_rejected = beta * logistic_slope(r)};
    case PreferenceLoss::kApoDown:
      return {.loss = logistic(c) + logistic(-d),
              .by_chosen = beta * (logistic_slope(c) - logistic_slope(d)),
              .by_rejected = beta * logistic_slope(d)};
    case PreferenceLoss::kReward: {
      const double ahead = chosen.log_probability - rejected.log_probability;
      const double both = chosen.log_probability + rejected.log_probability;
      const double omega = config.center_rewards_coefficient;
      return {.loss = -log_logistic(ahead) + omega * both * both,
              .by_chosen = -logistic(-ahead) + 2.0 * omega * both,
              .by_rejected = logistic(-ahead) + 2.0 * omega * both};
    }
    case PreferenceLoss::kOrpo: {
      const LogOdds of_chosen = log_odds(chosen.log_probability / chosen.tokens);
      const LogOdds of_rejected = log_odds(rejected.log_probability / rejected.tokens);
      const double ratio = of_chosen.value - of_rejected.value;
      const double slope = -beta * logistic(-ratio);
      return {.loss = -beta * log_logistic(ratio),
              .by_chosen = slope * of_chosen.slope / chosen.tokens,
              .by_rejected = -slope * of_rejected.slope / rejected.tokens};
    }
  }
  return {};
}

RatedLoss rated_loss(const PreferenceConfig& config,
                     const AnswerLikelihood& answer,
                     bool is_liked,
                     double divergence) {
  const double moved = config.beta * (answer.log_ratio() - divergence);
  const double weight = is_liked ? config.desirable_weight : config.undesirable_weight;
  const double slope = weight * config.beta * logistic_slope(moved);
  return {.loss = weight * logistic(is_liked ? -moved : moved),
          .by_answer = is_liked ? -slope : slope};
}

}  // namespace dstrain
