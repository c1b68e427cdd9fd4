// The device of a rank where there is no GPU; with emulated ones the ladder shows it
// (tests/parity/gpu_ladder_test.cpp).
#include "engine/train/rank_device.h"

#include <cstdlib>

#include <catch2/catch.hpp>
#include <unistd.h>

#include "engine/config/config_error.h"
#include "engine/train/make_run_plan.h"
#include "tests/harness/local_rendezvous.h"
#include "tests/harness/tiny_model.h"

namespace dstrain::test {
namespace {

TEST_CASE("a rank that is to compute on a GPU and sees none says so, with its host", "[train]") {
  setenv("CUDA_VISIBLE_DEVICES", "", 1);  // before CUDA is asked for the first time
  Config config = tiny_config({}, 1);
  const RunPlan plan = make_run_plan(config, 1, 0);
  const auto world = make_local_rendezvous(1);
  const auto store = make_memory_store();
  const TrainOptions options{.store = store.get()};
  char host[256] = {};
  REQUIRE(gethostname(host, sizeof(host) - 1) == 0);

  config.training.device = DeviceChoice::kCuda;
  CHECK_THROWS_AS(make_rank_device(config, plan, 1, *world[0], options), ConfigError);
  CHECK_THROWS_WITH(
      make_rank_device(config, plan, 1, *world[0], options),
      Catch::StartsWith("training.device is \"cuda\", but for rank 0 on " + std::string(host)) &&
          Catch::EndsWith(": use \"cpu\" or \"auto\""));
  config.training.device = DeviceChoice::kCpu;
  const RankDevice processor = make_rank_device(config, plan, 1, *world[0], options);
  CHECK(processor.backend.device->kind() == DeviceKind::kCpu);
  CHECK(processor.rendezvous == nullptr);
}

}  // namespace
}  // namespace dstrain::test
