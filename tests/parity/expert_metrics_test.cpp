// What a step says of its experts: against closed forms where the router is even, and alike however
// ranks share the step.
//
// A public report of what this would show: Megatron-LM 1478 (a load balancing loss told twice as
// large where layers are computed again, and of the last rank's tokens alone).
#include <cmath>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/harness/thread_world.h"
#include "tests/harness/tiny_model.h"
#include "tests/parity/tiny_family.h"

namespace dstrain::test {
namespace {

TinyOptions experts_of(const std::string& family) {
  TinyOptions options = tiny_experts(family);
  options.model->experts.z_coefficient = 0.001F;
  options.steps = 4;
  return options;
}

/// All weights are zero, and so are logits: every share is 1/E, whatever the counts, and of equal
/// scores the first k experts are chosen.
TEST_CASE("an even router has a balance loss of k and a z loss of ln² E", "[parity][experts]") {
  for (const int ranks : {1, 2}) {
    TinyOptions options = experts_of("mixtral");
    options.model->initializer_range = 0.0F;
    options.micro_batch = 8 / ranks;
    options.steps = 1;
    for (const TinyRun& run : train_ranks(ranks, options)) {
      const std::vector<LayerRouting>& layers = run.routing.at(0);
      REQUIRE(layers.size() == 2);
      for (const LayerRouting& layer : layers) {
        CHECK(*layer.balance_loss == Approx(3.0).epsilon(1e-6));
        CHECK(*layer.z_loss == Approx(std::pow(std::log(8.0), 2)).epsilon(1e-6));
        CHECK(layer.tokens == 8 * 19);
        const std::int64_t all = 8 * 19;
        CHECK(layer.chosen == std::vector<std::int64_t>{all, all, all, 0, 0, 0, 0, 0});
        CHECK(layer.busiest() == Approx(8.0 / 3.0));
      }
      CHECK(*mean_balance_loss(layers) == Approx(3.0).epsilon(1e-6));
      CHECK(busiest_of(layers) == Approx(8.0 / 3.0));
    }
  }
}

TEST_CASE("only losses that join are told, of layers that have experts", "[parity][experts]") {
  TinyOptions options = experts_of("qwen3_moe");
  options.steps = 1;
  const std::vector<LayerRouting> both = train_tiny(options).routing.at(0);
  REQUIRE(both.size() == 1);
  CHECK(both[0].layer == 0);
  CHECK(both[0].balance_loss.has_value());
  CHECK(both[0].z_loss.has_value());
  options.model->adds_balance_loss = false;
  const std::vector<LayerRouting> one = train_tiny(options).routing.at(0);
  CHECK_FALSE(mean_balance_loss(one).has_value());
  CHECK(mean_z_loss(one).has_value());
  options.model->experts.z_coefficient = 0.0F;
  const std::vector<LayerRouting> none = train_tiny(options).routing.at(0);
  CHECK_FALSE(mean_z_loss(none).has_value());
  CHECK(none.at(0).chosen == both[0].chosen);
  options.model->experts = {};
  options.model->model_type = "qwen3";
  CHECK(train_tiny(options).routing.at(0).empty());
}

struct Layout {
  const char* name;
  int ranks;
  TinyOptions options;
};

std::vector<Layout> layouts_of(const TinyOptions& alone) {
  std::vector<Layout> layouts;
  const auto add = [&](const char* name, int ranks, const auto& change) {
    Layout layout{name, ranks, alone};
    change(layout.options);
    layouts.push_back(layout);
  };
  add("micro-batches", 1, [](TinyOptions& o) { o.micro_batch = 2, o.accumulation = 4; });
  add("vertical", 1, [](TinyOptions& o) {
    o.micro_batch = 2;
    o.accumulation = 4;
    o.block_order = BlockOrder::kVertical;
  });
  add("computed again", 1,
      [](TinyOptions& o) { o.recompute.granularity = RecomputeGranularity::kFull; });
  add("data, stage 3", 2, [](TinyOptions& o) { o.micro_batch = 4, o.zero_stage = 3; });
  add("tensor", 2, [](TinyOptions& o) { o.tensor_parallel.size = 2; });
  add("tensor, sequence parallel", 4, [](TinyOptions& o) {
    o.tensor_parallel = {.size = 2, .sequence_parallel = true};
    o.micro_batch = 4;
  });
  add("pipeline", 2, [](TinyOptions& o) {
    o.pipeline = {.stages = 2};
    o.micro_batch = 1;
    o.accumulation = 8;
  });
  add("shared sequences", 4, [](TinyOptions& o) { o.context_parallel.size = 4; });
  add("shared sequences, other experts", 4, [](TinyOptions& o) {
    o.micro_batch = 4;
    o.context_parallel = {.size = 2, .kind = ContextKind::kUlysses};
    o.expert_parallel.size = 2;
  });
  add("other experts", 2, [](TinyOptions& o) { o.micro_batch = 4, o.expert_parallel.size = 2; });
  add("other experts, tensor", 4, [](TinyOptions& o) {
    o.micro_batch = 4;
    o.expert_parallel.size = 2;
    o.tensor_parallel.size = 2;
  });
  return layouts;
}

TEST_CASE("every layout says the same of its experts", "[parity][experts]") {
  for (const std::string family : {"mixtral", "qwen3_moe"}) {
    TinyOptions alone = experts_of(family);
    alone.sequence = 16;
    const TinyRun reference = train_tiny(alone);
    for (const Layout& layout : layouts_of(alone)) {
      for (const TinyRun& run : train_ranks(layout.ranks, layout.options)) {
        CAPTURE(family, layout.name);
        CHECK(run.unplanned_traffic == "");
        REQUIRE(run.routing.size() == reference.routing.size());
        for (std::size_t step = 0; step < run.routing.size(); ++step) {
          CAPTURE(step);
          const std::vector<LayerRouting>& layers = run.routing[step];
          const std::vector<LayerRouting>& expected = reference.routing[step];
          REQUIRE(layers.size() == expected.size());
          for (std::size_t i = 0; i < layers.size(); ++i) {
            CHECK(layers[i].layer == expected[i].layer);
            CHECK(layers[i].tokens == expected[i].tokens);
            CHECK(layers[i].chosen == expected[i].chosen);
            CHECK(*layers[i].balance_loss == Approx(*expected[i].balance_loss).epsilon(1e-5));
            CHECK(*layers[i].z_loss == Approx(*expected[i].z_loss).epsilon(1e-5));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace dstrain::test
