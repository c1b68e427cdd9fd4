// The losses of preferences: their derivatives by finite differences, and values that are known.
#include "engine/train/objective/preference_loss.h"

#include <cmath>

#include <catch2/catch.hpp>

namespace dstrain {
namespace {

constexpr PreferenceLoss kLosses[] = {PreferenceLoss::kSigmoid, PreferenceLoss::kHinge,
                                      PreferenceLoss::kIpo,     PreferenceLoss::kRobust,
                                      PreferenceLoss::kApoZero, PreferenceLoss::kApoDown,
                                      PreferenceLoss::kOrpo,    PreferenceLoss::kReward};

AnswerLikelihood answer(double log_probability, double reference, double tokens) {
  return {.log_probability = log_probability, .reference = reference, .tokens = tokens};
}

TEST_CASE("the derivatives of preferences' losses follow finite differences", "[preferences]") {
  constexpr double kStep = 1e-5;
  const std::pair<AnswerLikelihood, AnswerLikelihood> pairs[] = {
      {answer(-20.0, -21.0, 10), answer(-35.0, -33.0, 15)},
      {answer(-40.0, -30.0, 9), answer(-12.0, -20.0, 4)},
      {answer(-0.5, -0.5, 1), answer(-400.0, -200.0, 100)},
      {answer(-700.0, -100.0, 300), answer(-3.0, -600.0, 2)},
  };
  for (const PreferenceLoss loss : kLosses) {
    const PreferenceConfig config{
        .loss = loss, .beta = 0.2, .label_smoothing = 0.1, .center_rewards_coefficient = 0.01};
    for (const auto& [chosen, rejected] : pairs) {
      CAPTURE(static_cast<int>(loss), chosen.log_probability);
      const PairLoss found = pair_loss(config, chosen, rejected);
      const auto at = [&](double by_chosen, double by_rejected) {
        AnswerLikelihood c = chosen;
        AnswerLikelihood r = rejected;
        c.log_probability += by_chosen;
        r.log_probability += by_rejected;
        return pair_loss(config, c, r).loss;
      };
      CHECK(found.by_chosen ==
            Approx((at(kStep, 0) - at(-kStep, 0)) / (2 * kStep)).epsilon(1e-4).margin(1e-8));
      CHECK(found.by_rejected ==
            Approx((at(0, kStep) - at(0, -kStep)) / (2 * kStep)).epsilon(1e-4).margin(1e-8));
    }
  }
}

TEST_CASE("the derivatives of rated answers' losses follow finite differences", "[preferences]") {
  constexpr double kStep = 1e-5;
  const PreferenceConfig config{.loss = PreferenceLoss::kKto,
                                .beta = 0.3,
                                .desirable_weight = 1.5,
                                .undesirable_weight = 0.5};
  for (const bool is_liked : {true, false}) {
    for (const double ratio : {-40.0, -1.0, 0.0, 2.0, 30.0}) {
      CAPTURE(is_liked, ratio);
      const auto loss_at = [&](double moved) {
        return rated_loss(config, answer(ratio - 20.0 + moved, -20.0, 7), is_liked, 0.75).loss;
      };
      const RatedLoss found = rated_loss(config, answer(ratio - 20.0, -20.0, 7), is_liked, 0.75);
      CHECK(found.by_answer ==
            Approx((loss_at(kStep) - loss_at(-kStep)) / (2 * kStep)).epsilon(1e-4).margin(1e-8));
    }
  }
  CHECK(rated_loss(config, answer(-5.0, -5.75, 3), true, 0.75).loss == 0.75);
  CHECK(rated_loss(config, answer(-5.0, -5.75, 3), false, 0.75).loss == 0.25);
}

TEST_CASE("losses of preferences where nothing is preferred yet", "[preferences]") {
  const auto loss_of = [](PreferenceLoss loss) {
    return pair_loss({.loss = loss, .beta = 0.25, .label_smoothing = 0.2}, answer(-9, -9, 3),
                     answer(-15, -15, 5));
  };
  CHECK(loss_of(PreferenceLoss::kSigmoid).loss == Approx(std::log(2.0)));
  CHECK(loss_of(PreferenceLoss::kSigmoid).by_chosen == Approx(-0.25 / 2));
  CHECK(loss_of(PreferenceLoss::kRobust).loss == Approx(std::log(2.0)));
  CHECK(loss_of(PreferenceLoss::kHinge).loss == 1.0);
  CHECK(loss_of(PreferenceLoss::kIpo).loss == 4.0);
  CHECK(loss_of(PreferenceLoss::kApoZero).loss == 1.0);
  CHECK(loss_of(PreferenceLoss::kApoDown).loss == 1.0);
  // Both answers have e^-3 a token, so that the odds are even.
  CHECK(loss_of(PreferenceLoss::kOrpo).loss == Approx(0.25 * std::log(2.0)));
}

TEST_CASE("losses of preferences stay finite where an answer is certain or hopeless",
          "[preferences]") {
  for (const PreferenceLoss loss : kLosses) {
    for (const double sum : {0.0, -1e-30, -1e6}) {
      CAPTURE(static_cast<int>(loss), sum);
      for (const bool is_chosen : {true, false}) {
        const AnswerLikelihood extreme = answer(sum, -3.0, 2);
        const AnswerLikelihood other = answer(-5.0, -6.0, 3);
        const PairLoss found = pair_loss({.loss = loss, .beta = 0.1}, is_chosen ? extreme : other,
                                         is_chosen ? other : extreme);
        CHECK(std::isfinite(found.loss));
        CHECK(std::isfinite(found.by_chosen));
        CHECK(std::isfinite(found.by_rejected));
      }
    }
  }
}

}  // namespace
}  // namespace dstrain
