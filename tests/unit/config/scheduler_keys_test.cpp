// LRRangeTest and OneCycle in the config; the warm-up schedulers are in config_resolve_test.cpp.
#include "tests/unit/config/config_text.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;

std::vector<std::string> with(const std::string& type, const std::string& params) {
  return {R"(scheduler={"type": ")" + type + R"(", "params": )" + params + "}"};
}

LoadedConfig resolved(std::vector<std::string> overrides, const std::string& more = "") {
  overrides.emplace_back("gradient_clipping=1");  // says nothing at start
  if (!more.empty()) overrides.push_back(more);
  LoadedConfig loaded = load_tiny(overrides);
  resolve_config(loaded, 2);
  return loaded;
}

std::string error_of(const std::vector<std::string>& overrides) {
  return config_error_of([&] { resolved(overrides); });
}

const std::string kRates = R"("cycle_min_lr": 1e-4, "cycle_max_lr": 1e-2)";

std::vector<std::string> one_cycle(const std::string& more = "") {
  return with("OneCycle", "{" + kRates + (more.empty() ? "" : ", " + more) + "}");
}

}  // namespace

TEST_CASE("LRRangeTest's params arrive, and have DeepSpeed's defaults", "[spec][scheduler]") {
  const SchedulerConfig plain = resolved({"scheduler.type=LRRangeTest"}).config.scheduler;
  CHECK(plain.kind == SchedulerKind::kRangeTest);
  CHECK(plain.range_test ==
        RangeTestConfig{.min_lr = 1e-3, .step_size = 2000, .step_rate = 1.0, .staircase = false});
  CHECK(resolved(with("LRRangeTest",
                      R"({"lr_range_test_min_lr": 0.1, "lr_range_test_step_size": 5,
                          "lr_range_test_step_rate": 2, "lr_range_test_staircase": true})"))
            .config.scheduler.range_test ==
        RangeTestConfig{.min_lr = 0.1, .step_size = 5, .step_rate = 2.0, .staircase = true});
  CHECK_THAT(error_of(with("LRRangeTest", R"({"lr_range_test_step_size": 0})")),
             Contains("of at least 1, found 0"));
}

TEST_CASE("OneCycle's params arrive; its second half is as the first unless said",
          "[spec][scheduler]") {
  const LoadedConfig plain = resolved(one_cycle());
  CHECK(plain.config.scheduler.kind == SchedulerKind::kOneCycle);
  CHECK(plain.config.scheduler.one_cycle == OneCycleConfig{.min_lr = 1e-4,
                                                           .max_lr = 1e-2,
                                                           .decay_lr_rate = 0.0,
                                                           .first_step_size = 2000,
                                                           .second_step_size = 2000,
                                                           .first_stair_count = 0,
                                                           .second_stair_count = 0,
                                                           .decay_step_size = 0,
                                                           .cycle_momentum = true,
                                                           .min_momentum = 0.8,
                                                           .max_momentum = 0.9,
                                                           .decay_momentum_rate = 0.0});
  CHECK(origin_of(plain, "scheduler.params.cycle_second_step_size") ==
        "derived: cycle_first_step_size");
  const OneCycleConfig all = resolved(one_cycle(R"("decay_lr_rate": 0.5, "cycle_first_step_size": 5,
                            "cycle_second_step_size": 0, "cycle_first_stair_count": 2,
                            "cycle_second_stair_count": 3, "decay_step_size": 4,
                            "cycle_min_mom": 0.1, "cycle_max_mom": 0.2, "decay_mom_rate": 0.25)"))
                                 .config.scheduler.one_cycle;
  CHECK(all == OneCycleConfig{.min_lr = 1e-4,
                              .max_lr = 1e-2,
                              .decay_lr_rate = 0.5,
                              .first_step_size = 5,
                              .second_step_size = 0,
                              .first_stair_count = 2,
                              .second_stair_count = 3,
                              .decay_step_size = 4,
                              .cycle_momentum = true,
                              .min_momentum = 0.1,
                              .max_momentum = 0.2,
                              .decay_momentum_rate = 0.25});
}

TEST_CASE("OneCycle's rates must be said, and in order", "[spec][scheduler]") {
  CHECK_THAT(error_of(with("OneCycle", R"({"cycle_min_lr": 0.1})")),
             Contains("cycle_max_lr: missing: write the rate at the cycle's peak"));
  CHECK_THAT(error_of(with("OneCycle", R"({"cycle_min_lr": 0.2, "cycle_max_lr": 0.1})")),
             Contains("cycle_min_lr: 0.2 is greater than cycle_max_lr 0.1"));
  CHECK_THAT(error_of(one_cycle(R"("cycle_first_step_size": 0)")),
             Contains("of at least 1, found 0"));
  CHECK_THAT(error_of(one_cycle(R"("cycle_second_step_size": -1)")),
             Contains("of at least 0, found -1"));
  CHECK_THAT(error_of(one_cycle(R"("cycle_max_mom": 1)")), Contains("in [0, 1), found 1"));
}

TEST_CASE("an optimizer without betas turns cycle_momentum off with a warning",
          "[spec][scheduler]") {
  for (const char* type : {"SGD", "Adagrad", "Muon"}) {
    const LoadedConfig loaded =
        resolved(one_cycle(), fmt::format(R"(optimizer={{"type": "{}"}})", type));
    CHECK_FALSE(loaded.config.scheduler.one_cycle.cycle_momentum);
    CHECK_THAT(loaded.notices.at(0),
               Contains("scheduler.params.cycle_momentum: off, as in DeepSpeed: this optimizer has "
                        "no betas to cycle"));
  }
  for (const char* type : {"Adam", "Lion", "Lamb"}) {
    CHECK(resolved(one_cycle(), fmt::format(R"(optimizer={{"type": "{}"}})", type))
              .config.scheduler.one_cycle.cycle_momentum);
  }
}

TEST_CASE("a momentum that would grow to 1 before the run ends is refused", "[spec][scheduler]") {
  const std::string cycle =
      R"("cycle_first_step_size": 2, "cycle_max_mom": 0.5, "decay_step_size")";
  // 10 steps, 4 of the cycle: the last update is the fifth after it.
  CHECK(error_of(one_cycle(cycle + R"(: 1, "decay_mom_rate": 0.19)")).empty());
  CHECK_THAT(error_of(one_cycle(cycle + R"(: 1, "decay_mom_rate": 0.2)")),
             Contains("decay_mom_rate: 0.2 takes the momentum from 0.5 to 1 by the last step; it "
                      "must stay in [0, 1)"));
  CHECK(error_of(one_cycle(cycle + R"(: 0, "decay_mom_rate": 9)")).empty());
}

}  // namespace dstrain
