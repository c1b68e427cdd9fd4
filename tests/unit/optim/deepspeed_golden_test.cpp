// dstrain's schedules and loss scale compared with DeepSpeed's own, which wrote
// tests/golden/deepspeed.json (scripts/make_deepspeed_golden.py), from the config's JSON to the
// figures.
#include <fstream>

#include <nlohmann/json.hpp>

#include "engine/optim/loss_scaler.h"
#include "engine/optim/lr_schedule.h"
#include "tests/unit/config/config_text.h"

namespace dstrain {
namespace {

using nlohmann::json;

json read_golden() {
  return json::parse(std::ifstream("tests/golden/deepspeed.json"));
}

Config config_with(const std::vector<std::string>& overrides) {
  LoadedConfig loaded = load_tiny(overrides);
  resolve_config(loaded, 1);
  return loaded.config;
}

}  // namespace

TEST_CASE("every update has the rate and the betas that DeepSpeed's schedulers give it",
          "[optim][golden]") {
  const json golden = read_golden();
  const std::string lr = "optimizer.params.lr=" + golden.at("optimizer_lr").dump();
  REQUIRE(golden.at("schedules").size() == 17);
  for (const json& schedule : golden.at("schedules")) {
    const std::string block = schedule.at("scheduler").dump();
    const Config config = config_with({lr, "scheduler=" + block});
    const OptimizerConfig& optimizer = config.optimizer;
    std::int64_t update = 0;
    for (const json& rate : schedule.at("lr")) {
      const auto j = static_cast<std::size_t>(update++);
      INFO(block << " update " << update);
      // DeepSpeed finds its place in a cycle by divisions that each round, in other places.
      CHECK(learning_rate_of_update(config.scheduler, optimizer.learning_rate, update) ==
            Approx(rate.get<double>()).epsilon(1e-12).margin(1e-18));
      const auto own = CycledBetas{optimizer.beta1, optimizer.beta2};
      const CycledBetas betas = betas_of_update(config.scheduler, update).value_or(own);
      CHECK(betas.beta1 == Approx(schedule["betas"][j][0].get<double>()).epsilon(1e-12));
      CHECK(betas.beta2 == schedule["betas"][j][1].get<double>());
    }
  }
}

TEST_CASE("the loss scale moves exactly as DeepSpeed's, in every stage", "[optim][golden]") {
  const json golden = read_golden();
  REQUIRE(golden.at("loss_scales").size() == 24);
  int ended = 0;
  for (const json& run : golden.at("loss_scales")) {
    json f16 = run.at("fp16");
    f16["enabled"] = true;
    const Config config =
        config_with({"fp16=" + f16.dump(), "zero_optimization.stage=" + run.at("stage").dump()});
    LossScaler scaler(config.loss_scale, config.zero.stage > 0);
    INFO(run.dump());
    const auto steps = run.at("steps").get<std::string>();
    std::size_t step = 0;
    for (const json& scale : run.at("scales")) {
      REQUIRE(scaler.after_step(steps[step++] == 'x') == ScaleOutcome::kOk);
      REQUIRE(scaler.scale() == scale.get<double>());
    }
    if (run.at("ends_at_minimum").get<bool>()) {
      REQUIRE(scaler.after_step(steps.at(step) == 'x') == ScaleOutcome::kAtMinimum);
      ++ended;
    } else {
      CHECK(step == steps.size());
    }
  }
  CHECK(ended == 4);
}

}  // namespace dstrain
