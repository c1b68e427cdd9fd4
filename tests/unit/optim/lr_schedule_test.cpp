// Expected values: the rows of DeepSpeed's scheduler formulas, worked out by hand.
#include "engine/optim/lr_schedule.h"

#include <cmath>

#include <catch2/catch.hpp>

#include "engine/optim/grad_norm.h"

namespace dstrain {
namespace {

constexpr double kRate = 0.01;

double update(const SchedulerConfig& scheduler, std::int64_t j) {
  return learning_rate_of_update(scheduler, kRate, j);
}

TEST_CASE("without a scheduler every update has the optimizer's rate", "[optim]") {
  CHECK(update({}, 1) == kRate);
  CHECK(update({}, 1000) == kRate);
}

TEST_CASE("WarmupLR linear: the first two updates have the minimum, then k / W", "[optim]") {
  const SchedulerConfig scheduler{.kind = SchedulerKind::kWarmup,
                                  .warmup_type = WarmupType::kLinear,
                                  .warmup_num_steps = 4,
                                  .warmup_min_lr = 0.0,
                                  .warmup_max_lr = 0.02};
  const double expected[] = {0.0, 0.0, 0.005, 0.010, 0.015, 0.02, 0.02};
  for (std::int64_t j = 1; j <= 7; ++j) {
    CHECK(update(scheduler, j) == Approx(expected[j - 1]).margin(1e-15));
  }
}

TEST_CASE("WarmupLR log: ln(k+1) / ln(W), exactly 1 at k = W - 1; max defaults to the optimizer's",
          "[optim]") {
  const SchedulerConfig scheduler{.kind = SchedulerKind::kWarmup,
                                  .warmup_type = WarmupType::kLog,
                                  .warmup_num_steps = 8,
                                  .warmup_min_lr = 0.001};
  CHECK(update(scheduler, 1) == 0.001);
  CHECK(update(scheduler, 2) == 0.001);                              // ln 1 = 0
  CHECK(update(scheduler, 3) == Approx(0.001 + 0.009 / 3.0));        // ln 2 / ln 8
  CHECK(update(scheduler, 5) == Approx(0.001 + 0.009 * 2.0 / 3.0));  // ln 4 / ln 8
  CHECK(update(scheduler, 9) == Approx(kRate));
  CHECK(update(scheduler, 100) == Approx(kRate));
}

TEST_CASE("a warm-up of one step counts as two", "[optim]") {
  const SchedulerConfig scheduler{.kind = SchedulerKind::kWarmup,
                                  .warmup_type = WarmupType::kLinear,
                                  .warmup_num_steps = 1,
                                  .warmup_max_lr = 0.02};
  CHECK(update(scheduler, 2) == 0.0);
  CHECK(update(scheduler, 3) == Approx(0.01));
  CHECK(update(scheduler, 4) == Approx(0.02));
}

TEST_CASE("WarmupDecayLR falls linearly from k = W to zero at k = T and stays there", "[optim]") {
  const SchedulerConfig scheduler{.kind = SchedulerKind::kWarmupDecay,
                                  .warmup_type = WarmupType::kLinear,
                                  .warmup_num_steps = 2,
                                  .total_num_steps = 10,
                                  .warmup_min_lr = 0.0,
                                  .warmup_max_lr = 0.08};
  CHECK(update(scheduler, 3) == Approx(0.04));  // k = 1, still warming
  CHECK(update(scheduler, 4) == Approx(0.08));  // k = W: (10-2)/(10-2)
  CHECK(update(scheduler, 8) == Approx(0.04));  // k = 6
  CHECK(update(scheduler, 12) == Approx(0.0).margin(1e-15));
  CHECK(update(scheduler, 20) == Approx(0.0).margin(1e-15));
}

TEST_CASE("WarmupCosineLR: zero, warm-up by ratio, half a cosine that does not rise again",
          "[optim]") {
  const SchedulerConfig scheduler{.kind = SchedulerKind::kWarmupCosine,
                                  .warmup_type = WarmupType::kLinear,
                                  .warmup_num_steps = 2,
                                  .total_num_steps = 6,
                                  .warmup_min_ratio = 0.5,
                                  .cos_min_ratio = 0.1};
  CHECK(update(scheduler, 1) == 0.0);                   // k = -1
  CHECK(update(scheduler, 2) == Approx(kRate * 0.5));   // k = 0
  CHECK(update(scheduler, 3) == Approx(kRate * 0.75));  // k = 1
  CHECK(update(scheduler, 4) ==
        Approx(kRate * (0.1 + 0.9 * (1 + std::cos(M_PI / 4)) / 2)));  // k = 2: p = 1/4
  CHECK(update(scheduler, 5) == Approx(kRate * (0.1 + 0.9 * 0.5)));   // p = 1/2
  CHECK(update(scheduler, 7) == Approx(kRate * 0.1));                 // p = 1
  CHECK(update(scheduler, 50) == Approx(kRate * 0.1));                // p clamped
}

TEST_CASE("LRRangeTest grows by step_rate of its first rate every step_size updates", "[optim]") {
  SchedulerConfig scheduler{.kind = SchedulerKind::kRangeTest,
                            .range_test = {.min_lr = 0.002, .step_size = 4, .step_rate = 0.5}};
  CHECK(update(scheduler, 1) == 0.002);            // k = -1
  CHECK(update(scheduler, 2) == Approx(0.00225));  // (k + 1) / 4 = 1/4
  CHECK(update(scheduler, 4) == Approx(0.00275));
  CHECK(update(scheduler, 9) == Approx(0.004));
  scheduler.range_test.staircase = true;
  for (const std::int64_t j : {1, 2, 3, 4}) {
    CHECK(update(scheduler, j) == 0.002);
  }
  CHECK(update(scheduler, 5) == Approx(0.003));
  CHECK(update(scheduler, 8) == Approx(0.003));
  CHECK(update(scheduler, 9) == Approx(0.004));
}

TEST_CASE("OneCycle goes up, down and stays; beta1 goes the other way from the second update on",
          "[optim]") {
  const SchedulerConfig scheduler{.kind = SchedulerKind::kOneCycle,
                                  .one_cycle = {.min_lr = 1.0,
                                                .max_lr = 5.0,
                                                .first_step_size = 4,
                                                .second_step_size = 2,
                                                .min_momentum = 0.5,
                                                .max_momentum = 0.9}};
  const double rates[] = {1, 2, 3, 4, 5, 3, 1, 1, 1};
  const double beta1s[] = {0.5, 0.8, 0.7, 0.6, 0.5, 0.7, 0.9, 0.9, 0.9};
  for (std::int64_t j = 1; j <= 9; ++j) {
    INFO("update " << j);
    CHECK(update(scheduler, j) == Approx(rates[j - 1]).epsilon(1e-14));
    CHECK(betas_of_update(scheduler, j)->beta1 == Approx(beta1s[j - 1]).epsilon(1e-14));
    CHECK(betas_of_update(scheduler, j)->beta2 == 0.99);
  }
}

TEST_CASE("OneCycle's stairs hold rate and momentum, as many on each side as asked", "[optim]") {
  const SchedulerConfig scheduler{.kind = SchedulerKind::kOneCycle,
                                  .one_cycle = {.min_lr = 0.0,
                                                .max_lr = 6.0,
                                                .first_step_size = 6,
                                                .second_step_size = 6,
                                                .first_stair_count = 2,
                                                .second_stair_count = 3}};
  const double rates[] = {0, 0, 0, 3, 3, 3, 6, 4, 4, 2, 2, 0, 0};  // b = k + 1 = 0 … 12
  for (std::int64_t b = 0; b <= 12; ++b) {
    INFO("b " << b);
    CHECK(update(scheduler, b + 1) == Approx(rates[b]).margin(1e-15));
  }
}

TEST_CASE("OneCycle decays rate and momentum after the cycle", "[optim]") {
  const SchedulerConfig scheduler{.kind = SchedulerKind::kOneCycle,
                                  .one_cycle = {.min_lr = 1.0,
                                                .max_lr = 2.0,
                                                .decay_lr_rate = 0.5,
                                                .first_step_size = 2,
                                                .decay_step_size = 4,
                                                .max_momentum = 0.8,
                                                .decay_momentum_rate = 0.1}};
  CHECK(update(scheduler, 6) == Approx(1.0 / (1.0 + 0.5 * 1 / 4)));   // k = 4 = S: d = 1
  CHECK(update(scheduler, 13) == Approx(1.0 / (1.0 + 0.5 * 8 / 4)));  // d = 8
  CHECK(betas_of_update(scheduler, 6)->beta1 == Approx(0.8 * (1.0 + 0.1 * 1 / 4)));
  CHECK(betas_of_update(scheduler, 13)->beta1 == Approx(0.8 * (1.0 + 0.1 * 8 / 4)));
}

TEST_CASE("only OneCycle with cycle_momentum touches the betas", "[optim]") {
  CHECK_FALSE(betas_of_update({.kind = SchedulerKind::kRangeTest}, 3).has_value());
  CHECK_FALSE(betas_of_update({.kind = SchedulerKind::kWarmup}, 3).has_value());
  CHECK_FALSE(
      betas_of_update({.kind = SchedulerKind::kOneCycle, .one_cycle = {.cycle_momentum = false}}, 3)
          .has_value());
}

TEST_CASE("clipping divides by (norm + 1e-6) / limit where that is above one", "[optim]") {
  CHECK(clip_factor(5.0, 0.0) == 1.0);
  CHECK(clip_factor(0.5, 1.0) == 1.0);
  CHECK(clip_factor(4.0, 1.0) == Approx(1.0 / (4.0 + 1e-6)).epsilon(1e-14));
  CHECK(clip_factor(4.0, 2.0) == Approx(2.0 / (4.0 + 1e-6)).epsilon(1e-14));
}

}  // namespace
}  // namespace dstrain
