// What "grpo" and "ppo" minimise: advantages are those of the formulas, and weights the derivatives
// of the loss, by differences.
#include <algorithm>
#include <cmath>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/train/make_run_plan.h"
#include "engine/train/objective/policy_gradient.h"
#include "engine/train/objective/proximal_policy.h"
#include "tests/harness/tiny_model.h"

namespace dstrain::test {
namespace {

std::vector<Rollout> rewarded(const std::vector<double>& rewards) {
  std::vector<Rollout> rollouts;
  for (const double reward : rewards) {
    rollouts.push_back({.ids = {1, 2, 3}, .prompt_tokens = 1, .reward = reward});
  }
  return rollouts;
}

TEST_CASE("advantages are rewards beside those of the same prompt", "[rewards]") {
  const auto advantages = [](RewardScale scale) {
    std::vector<Rollout> rollouts = rewarded({1.0, 3.0, 5.0, 5.0});
    set_advantages(rollouts, 2, scale);
    std::vector<double> found;
    for (const Rollout& rollout : rollouts) {
      found.push_back(rollout.advantage);
    }
    return found;
  };
  CHECK(advantages(RewardScale::kNone) == std::vector<double>{-1.0, 1.0, 0.0, 0.0});
  const double deviation = std::sqrt(2.0) + 1e-4;
  CHECK(advantages(RewardScale::kGroup) ==
        std::vector<double>{-1.0 / deviation, 1.0 / deviation, 0.0, 0.0});
  const double of_batch = std::sqrt(11.0 / 3.0) + 1e-4;
  CHECK(advantages(RewardScale::kBatch)[1] == Approx(1.0 / of_batch).epsilon(1e-12));
}

/// A step of two prompts with two completions each, whose losses are `nats`.
struct Step {
  PolicyConfig config{.reward_command = "true", .completion_tokens = 6, .generations = 2};
  std::vector<Rollout> rollouts;
  std::vector<float> nats;  // of 4 sequences of 8 tokens
  std::vector<float> values;

  Step() {
    for (int i = 0; i < 4; ++i) {
      Rollout rollout{.ids = std::vector<std::int32_t>(static_cast<std::size_t>(5 + i % 3), 1),
                      .prompt_tokens = 2,
                      .is_truncated = i == 3,
                      .advantage = 0.5 * i - 0.7};
      for (std::int64_t token = 0; token < rollout.completion_tokens(); ++token) {
        rollout.reference_nats.push_back(0.9F + 0.1F * static_cast<float>(token + i));
      }
      rollouts.push_back(rollout);
    }
    for (int i = 0; i < 32; ++i) {
      nats.push_back(1.0F + 0.05F * static_cast<float>(i % 7));
      values.push_back(0.3F - 0.04F * static_cast<float>(i % 5));
    }
  }

  /// Makes completions those of a model that has been trained since.
  void age() {
    for (Rollout& rollout : rollouts) {
      for (std::int64_t token = 0; token < rollout.completion_tokens(); ++token) {
        rollout.old_nats.push_back(0.8F + 0.13F * static_cast<float>((token * 3) % 5));
        rollout.old_values.push_back(0.35F - 0.05F * static_cast<float>(token));
      }
    }
  }

  static RunPlan plan() {
    TinyOptions options;
    options.sequence = 8;
    options.micro_batch = 4;
    return make_run_plan(tiny_config(options, 1), 1, 0);
  }

  /// The sums, and the derivative by each loss and value.
  ObjectiveSums weigh(RolloutObjective& objective,
                      std::vector<float>& weights,
                      std::vector<float>& by_values,
                      const std::vector<float>& at,
                      const std::vector<float>& values_at) const {
    objective.begin_step(0, 4);
    weights.assign(32, 7.0F);
    by_values.assign(32, 7.0F);
    objective.weigh({.use = BatchUse::kTraining,
                     .first_sample = 0,
                     .counted_samples = 4,
                     .found = {.nats_BT = at, .values_BT = values_at}},
                    {.nats_BT = weights, .values_BT = by_values});
    return objective.take_sums();
  }
  ObjectiveSums weigh(std::vector<float>& weights, const std::vector<float>& at) const {
    PolicyObjective objective(plan(), config, rollouts);
    std::vector<float> ignored;
    return weigh(objective, weights, ignored, at, values);
  }
};

/// Whether a position of the sequences holds a loss of a completion's token.
bool is_of_completion(const Rollout& rollout, std::size_t position) {
  const auto at = static_cast<std::int64_t>(position) + 1;
  return at >= rollout.prompt_tokens && at < std::ssize(rollout.ids);
}

TEST_CASE("completions weigh as their loss's derivative says", "[rewards]") {
  for (const PolicyLoss loss : {PolicyLoss::kDapo, PolicyLoss::kGrpo, PolicyLoss::kDrGrpo}) {
    for (const bool mask : {false, true}) {
      Step step;
      step.config.loss = loss;
      step.config.beta = 0.3;
      step.config.mask_truncated = mask;
      step.config.unbiased_divergence = !mask;
      CAPTURE(static_cast<int>(loss), mask);
      std::vector<float> weights;
      const ObjectiveSums sums = step.weigh(weights, step.nats);
      const double tokens = mask ? 3 + 4 + 5 : 3 + 4 + 5 + 3;
      CHECK(sums[1] == (loss == PolicyLoss::kDapo   ? tokens
                        : loss == PolicyLoss::kGrpo ? 4.0
                                                    : 4.0 * 6.0));
      std::vector<float> ignored;
      for (std::size_t i = 0; i < 32; ++i) {
        const std::size_t row = i / 8;
        const auto at = static_cast<std::int64_t>(i % 8) + 1;
        const Rollout& rollout = step.rollouts[row];
        const bool is_trained = at >= 2 && at < std::ssize(rollout.ids) && !(mask && row == 3);
        // The ratio is 1, and its derivative by the loss -1: the divergence alone is felt here.
        constexpr float kStep = 1e-2F;
        std::vector<float> moved = step.nats;
        moved[i] += kStep;
        const double above = step.weigh(ignored, moved)[0];
        moved[i] -= 2 * kStep;
        const double below = step.weigh(ignored, moved)[0];
        const double share = loss == PolicyLoss::kGrpo
                                 ? 1.0 / static_cast<double>(rollout.completion_tokens())
                                 : 1.0;
        double expected = is_trained ? (above - below) / (2 * static_cast<double>(kStep)) +
                                           share * rollout.advantage
                                     : 0.0;
        if (is_trained && step.config.unbiased_divergence) {
          const double d = static_cast<double>(step.nats[i]) -
                           static_cast<double>(rollout.reference_nats[i % 8 - 1]);
          expected -= share * step.config.beta * (std::exp(d) - d - 1.0);
        }
        CHECK(static_cast<double>(weights[i]) == Approx(expected).margin(2e-5));
      }
    }
  }
}

TEST_CASE("completions that are trained again weigh as far as their ratio counts", "[rewards]") {
  for (const bool unbiased : {false, true}) {
    Step step;
    step.age();
    step.config.beta = 0.3;
    step.config.clip_low = 0.15;
    step.config.clip_high = 0.25;
    step.config.unbiased_divergence = unbiased;
    CAPTURE(unbiased);
    std::vector<float> weights;
    std::vector<float> ignored;
    const ObjectiveSums sums = step.weigh(weights, step.nats);
    double loss = 0.0;
    double clipped = 0.0;
    for (std::size_t i = 0; i < 32; ++i) {
      const Rollout& rollout = step.rollouts[i / 8];
      if (!is_of_completion(rollout, i % 8)) {
        CHECK(weights[i] == 0.0F);
        continue;
      }
      const auto nats = static_cast<double>(step.nats[i]);
      const double ratio = std::exp(static_cast<double>(rollout.old_nats[i % 8 - 1]) - nats);
      const double held = std::clamp(ratio, 0.85, 1.25);
      const double d = nats - static_cast<double>(rollout.reference_nats[i % 8 - 1]);
      loss -= std::min(ratio * rollout.advantage, held * rollout.advantage);
      loss += 0.3 * (std::exp(d) - d - 1.0) * (unbiased ? ratio : 1.0);
      clipped += held * rollout.advantage < ratio * rollout.advantage ? 1.0 : 0.0;
      constexpr float kStep = 1e-3F;
      std::vector<float> moved = step.nats;
      moved[i] += kStep;
      const double above = step.weigh(ignored, moved)[0];
      moved[i] -= 2 * kStep;
      const double below = step.weigh(ignored, moved)[0];
      CHECK(static_cast<double>(weights[i]) ==
            Approx((above - below) / (2 * static_cast<double>(kStep))).margin(1e-3));
    }
    CHECK(sums[0] == Approx(loss).epsilon(1e-6));
    CHECK(clipped >= 2.0);
    CHECK(RolloutObjective::means_of(sums).clipped == Approx(clipped / sums[1]).epsilon(1e-12));
  }
}

TEST_CASE("advantages of tokens are what came beyond their values", "[rewards]") {
  Step step;
  step.age();
  for (Rollout& rollout : step.rollouts) {
    rollout.reward = 0.4 * static_cast<double>(rollout.ids.size()) - 2.0;
  }
  for (const DivergenceEstimate estimate : {DivergenceEstimate::kK1, DivergenceEstimate::kK3}) {
    const PpoConfig config{.beta = 0.2,
                           .estimate = estimate,
                           .discount = 0.9,
                           .lambda = 0.7,
                           .missing_end_penalty = 0.5};
    std::vector<Rollout> rollouts = step.rollouts;
    set_token_advantages(rollouts, config);
    std::vector<double> unwhitened;
    std::vector<double> found;
    for (const Rollout& rollout : rollouts) {
      const auto length = static_cast<std::size_t>(rollout.completion_tokens());
      REQUIRE(rollout.advantages.size() == length);
      const auto value = [&](std::size_t token) {
        return token < length ? static_cast<double>(rollout.old_values[token]) : 0.0;
      };
      const auto surprise = [&](std::size_t token) {
        const double d = static_cast<double>(rollout.old_nats[token]) -
                         static_cast<double>(rollout.reference_nats[token]);
        const double divergence = estimate == DivergenceEstimate::kK1 ? -d : std::exp(d) - d - 1.0;
        double reward = -0.2 * divergence;
        if (token + 1 == length) reward += rollout.reward - (rollout.is_truncated ? 0.5 : 0.0);
        return reward + 0.9 * value(token + 1) - value(token);
      };
      for (std::size_t token = 0; token < length; ++token) {
        double advantage = 0.0;
        for (std::size_t later = token; later < length; ++later) {
          advantage += std::pow(0.9 * 0.7, static_cast<double>(later - token)) * surprise(later);
        }
        CHECK(static_cast<double>(rollout.returns[token]) ==
              Approx(advantage + value(token)).epsilon(1e-6));
        unwhitened.push_back(advantage);
        found.push_back(static_cast<double>(rollout.advantages[token]));
      }
    }
    double mean = 0.0;
    double squares = 0.0;
    for (const double advantage : unwhitened) {
      mean += advantage / static_cast<double>(unwhitened.size());
    }
    for (const double advantage : unwhitened) {
      squares += std::pow(advantage - mean, 2.0) / static_cast<double>(unwhitened.size() - 1);
    }
    for (std::size_t i = 0; i < found.size(); ++i) {
      CHECK(found[i] == Approx((unwhitened[i] - mean) / std::sqrt(squares)).margin(1e-6));
    }
  }
}

TEST_CASE("tokens and values weigh as their loss's derivatives say", "[rewards]") {
  Step step;
  step.age();
  const PpoConfig config{.clip = 0.15, .value_weight = 0.4, .value_clip = 0.06};
  set_token_advantages(step.rollouts, config);
  ProximalPolicyObjective objective(Step::plan(), config, step.rollouts);
  std::vector<float> weights;
  std::vector<float> by_values;
  const ObjectiveSums sums = step.weigh(objective, weights, by_values, step.nats, step.values);
  CHECK(sums[1] == 3 + 4 + 5 + 3);
  std::vector<float> ignored;
  int held = 0;
  for (std::size_t i = 0; i < 32; ++i) {
    const bool is_trained = is_of_completion(step.rollouts[i / 8], i % 8);
    constexpr float kStep = 1e-3F;
    const auto slope = [&](std::vector<float> Step::*what) {
      Step moved = step;
      const auto loss = [&](float by) {
        (moved.*what)[i] += by;
        return step.weigh(objective, ignored, ignored, moved.nats, moved.values)[0];
      };
      const double above = loss(kStep);
      return (above - loss(-2 * kStep)) / (2 * static_cast<double>(kStep));
    };
    CHECK(static_cast<double>(weights[i]) == Approx(slope(&Step::nats)).margin(1e-3));
    CHECK(static_cast<double>(by_values[i]) == Approx(slope(&Step::values)).margin(1e-3));
    held += is_trained && by_values[i] == 0.0F ? 1 : 0;
  }
  CHECK(held >= 2);
}

}  // namespace
}  // namespace dstrain::test
