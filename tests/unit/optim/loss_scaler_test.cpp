// The scaler against DeepSpeed's rules: their consequences counted out by hand, and the rules
// themselves written down line by line and run beside it over random overflows.
#include "engine/optim/loss_scaler.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

namespace dstrain {
namespace {

/// Scales after each of the steps, an overflow where the text has an 'x'.
std::vector<double> scales_after(LossScaler& scaler, const std::string& steps) {
  std::vector<double> scales;
  for (const char step : steps) {
    REQUIRE(scaler.after_step(step == 'x') == ScaleOutcome::kOk);
    scales.push_back(scaler.scale());
  }
  return scales;
}

/// The rules as the contract writes them (§5), with its names.
struct Rules {
  LossScaleConfig config;
  bool zero;
  double S;
  long i = 0;
  long last = -1;
  long h;
  bool fatal = false;

  void step(bool o) {
    if (zero && o) {
      if (config.hysteresis == 1 || h == 1) {
        if (S == config.min_scale) {
          fatal = true;
          return;
        }
        S = std::max(S / 2, config.min_scale);
      } else {
        h -= 1;
      }
      last = i;
    } else if (o) {
      S = std::max(S / 2, config.min_scale);
      last = i;
    } else {
      if (config.consecutive_hysteresis) h = config.hysteresis;
      const long n = i - last - 1;
      if (n > 0 && n % config.window == 0) {
        if (!config.consecutive_hysteresis) h = config.hysteresis;
        S *= 2;
      }
    }
    i += 1;
  }
};

}  // namespace

TEST_CASE("ZeRO's scaler forgives the first overflow, then halves at each", "[optim]") {
  LossScaler scaler({}, true);
  CHECK(scaler.scale() == 65536.0);
  CHECK(scales_after(scaler, "xxx.x") ==
        std::vector<double>{65536, 32768, 16384, 16384, 8192});  // a clean step restores nothing
}

TEST_CASE("the first doubling comes after window + 1 clean steps, later ones after window",
          "[optim]") {
  for (const int stage : {0, 1}) {
    LossScaler scaler({.initial_scale_power = 2, .window = 3}, stage > 0);
    CHECK(scales_after(scaler, ".......") == std::vector<double>{4, 4, 4, 8, 8, 8, 16});
  }
  // After an overflow at i, n = 0 at i + 1: again one step late.
  LossScaler scaler({.initial_scale_power = 2, .window = 3, .hysteresis = 1}, true);
  CHECK(scales_after(scaler, "x....") == std::vector<double>{2, 2, 2, 2, 4});
}

TEST_CASE("a doubling restores the hysteresis", "[optim]") {
  LossScaler scaler({.initial_scale_power = 4, .window = 2}, true);
  CHECK(scales_after(scaler, "xx...x") == std::vector<double>{16, 8, 8, 8, 16, 16});
  CHECK(scales_after(scaler, "x") == std::vector<double>{8});
}

TEST_CASE("with consecutive_hysteresis a clean step restores it", "[optim]") {
  LossScaler scaler({.initial_scale_power = 4, .consecutive_hysteresis = true}, true);
  CHECK(scales_after(scaler, "x.x.xx") == std::vector<double>{16, 16, 16, 16, 16, 8});
}

TEST_CASE("an overflow at the minimum is fatal under ZeRO and nothing at stage 0", "[optim]") {
  const LossScaleConfig config{.initial_scale_power = 1, .hysteresis = 1};
  LossScaler zero(config, true);
  CHECK(scales_after(zero, "x") == std::vector<double>{1});
  const LossScalerState before = zero.state();
  CHECK(zero.after_step(true) == ScaleOutcome::kAtMinimum);
  CHECK(zero.state() == before);
  LossScaler plain(config, false);
  CHECK(scales_after(plain, "xxx") == std::vector<double>{1, 1, 1});
}

TEST_CASE("the scale stops at a minimum between two powers of two", "[optim]") {
  LossScaler scaler({.initial_scale_power = 3, .hysteresis = 1, .min_scale = 3.0}, true);
  CHECK(scales_after(scaler, "xx") == std::vector<double>{4, 3});
  CHECK(scaler.after_step(true) == ScaleOutcome::kAtMinimum);
}

TEST_CASE("stage 0 halves at the first overflow", "[optim]") {
  LossScaler scaler({.hysteresis = 4}, false);
  CHECK(scales_after(scaler, "x.x") == std::vector<double>{32768, 32768, 16384});
}

TEST_CASE("a static scale never moves", "[optim]") {
  LossScaler scaler({.static_scale = 128.0, .window = 1}, true);
  CHECK(scales_after(scaler, "xxxx...") == std::vector<double>(7, 128.0));
}

TEST_CASE("any sequence of overflows scales as the rules say", "[optim]") {
  std::mt19937 random(7);
  std::uniform_int_distribution<int> percent(0, 99);
  for (int run = 0; run < 2000; ++run) {
    const LossScaleConfig config{.initial_scale_power = percent(random) % 20,
                                 .window = 1 + percent(random) % 7,
                                 .hysteresis = 1 + percent(random) % 4,
                                 .consecutive_hysteresis = percent(random) < 50,
                                 .min_scale = 1.0 + percent(random) % 3};
    const int stage = percent(random) % 4;
    const int overflow_percent = percent(random);
    LossScaler scaler(config, stage > 0);
    Rules rules{.config = config,
                .zero = stage > 0,
                .S = std::ldexp(1.0, static_cast<int>(config.initial_scale_power)),
                .h = config.hysteresis};
    for (int step = 0; step < 100 && !rules.fatal; ++step) {
      const bool overflow = percent(random) < overflow_percent;
      rules.step(overflow);
      const ScaleOutcome outcome = scaler.after_step(overflow);
      CAPTURE(run, step, stage);
      REQUIRE((outcome == ScaleOutcome::kAtMinimum) == rules.fatal);
      REQUIRE(scaler.state() == LossScalerState{.scale = rules.S,
                                                .iteration = rules.i,
                                                .last_overflow = rules.last,
                                                .hysteresis = rules.h});
    }
  }
}

TEST_CASE("a scaler restored from its state continues as if never stopped", "[optim]") {
  const LossScaleConfig config{.initial_scale_power = 10, .window = 3};
  LossScaler straight(config, true);
  scales_after(straight, "x..x.xx....");
  LossScaler resumed(config, true);
  resumed.restore(straight.state());
  CHECK(scales_after(resumed, "..x.....x") == scales_after(straight, "..x.....x"));
}

TEST_CASE("a run without a scale leaves the next one's first scale, and a static one stays",
          "[optim]") {
  LossScaler dynamic({}, true);
  dynamic.restore({.scale = 0.0, .iteration = 0, .last_overflow = 0, .hysteresis = 0});
  CHECK(dynamic.scale() == 65536.0);
  CHECK(scales_after(dynamic, "x") == std::vector<double>{65536});
  LossScaler fixed({.static_scale = 8.0}, true);
  fixed.restore({.scale = 1024.0, .iteration = 5, .last_overflow = 2, .hysteresis = 1});
  CHECK(fixed.scale() == 8.0);
}

}  // namespace dstrain
