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

TEST_CASE("clipping divides by (norm + 1e-6) / limit where that is above one", "[optim]") {
  CHECK(clip_factor(5.0, 0.0) == 1.0);
  CHECK(clip_factor(0.5, 1.0) == 1.0);
  CHECK(clip_factor(4.0, 1.0) == Approx(1.0 / (4.0 + 1e-6)).epsilon(1e-14));
  CHECK(clip_factor(4.0, 2.0) == Approx(2.0 / (4.0 + 1e-6)).epsilon(1e-14));
}

}  // namespace
}  // namespace dstrain
