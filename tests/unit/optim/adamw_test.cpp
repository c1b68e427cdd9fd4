#include <cmath>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/comm/rendezvous.h"
#include "engine/optim/optimizer.h"
#include "kernels/backend.h"

namespace dstrain {
namespace {

/// One matrix that decays and one bias that does not, updated in ranges.
struct World {
  Blueprint blueprint;
  Backend backend = make_cpu_backend(1);
  World() {
    blueprint.begin_unit("u");
    blueprint.add_param({.name = "w", .shape = {3, 3}, .decays = true});
    blueprint.add_param({.name = "b", .shape = {5}, .decays = false});
  }
};

std::vector<float> after_three_updates(std::span<const Range> ranges) {
  World world;
  const ShardMap shards(world.blueprint, 1);
  const MemoryPlan plan(world.blueprint, shards, {});
  Arena arena(world.blueprint, plan, *world.backend.device);
  ParameterTable parameter_table(1);
  const ExecContext context{.ops = *world.backend.ops,
                            .device = *world.backend.device,
                            .compute = world.backend.device->compute_stream(),
                            .blueprint = world.blueprint,
                            .arena = arena,
                            .parameters = parameter_table};
  const OptimizerConfig config{.beta1 = 0.8,
                               .beta2 = 0.9,
                               .epsilon = 1e-3,
                               .weight_decay = 0.5,
                               .muon_lr = {},
                               .adam_lr = {}};
  const auto world_of_one = make_local_rendezvous(1);
  const std::vector<int> members{0};
  const auto group = world_of_one.front()->make_group("world", members);
  const auto optimizer = make_optimizer({.config = config,
                                         .blueprint = world.blueprint,
                                         .shards = shards,
                                         .scratch = {},
                                         .group = *group});
  const auto parameters = arena.master(0).as<float>();
  const auto gradients = arena.unit(RegionKind::kGradients, 0).as<float>();
  for (std::size_t i = 0; i < 14; ++i) {
    parameters[i] = 0.1F * static_cast<float>(i) - 0.5F;
  }
  for (std::int64_t update = 1; update <= 3; ++update) {
    for (std::size_t i = 0; i < 14; ++i) {
      gradients[i] = std::sin(static_cast<float>(i) + static_cast<float>(update));
    }
    for (const Range& range : ranges) {
      const auto part = [&](const Tensor& tensor) { return tensor.flat(range.begin, range.end); };
      const UnitState unit{.unit = 0,
                           .range = range,
                           .gradient = part(arena.unit(RegionKind::kGradients, 0)),
                           .master = part(arena.master(0)),
                           .first_moment = part(arena.unit(RegionKind::kFirstMoment, 0)),
                           .second_moment = part(arena.unit(RegionKind::kSecondMoment, 0)),
                           .parameters = {}};
      optimizer->update(
          context, {&unit, 1},
          {.learning_rate = 0.01, .beta1 = {}, .update = update, .gradient_scale = 0.5F},
          [](std::size_t /*unit*/) {});
    }
  }
  return {parameters.begin(), parameters.begin() + 14};
}

TEST_CASE("AdamW follows the published algorithm in fp64, decay on matrices only", "[optim]") {
  const Range whole{0, 14};
  const std::vector<float> got = after_three_updates({&whole, 1});
  for (std::size_t i = 0; i < 14; ++i) {
    double p = 0.1F * static_cast<float>(i) - 0.5F;
    double m = 0.0;
    double v = 0.0;
    for (int t = 1; t <= 3; ++t) {
      const double g =
          0.5 * static_cast<double>(std::sin(static_cast<float>(i) + static_cast<float>(t)));
      m = 0.8 * m + 0.2 * g;
      v = 0.9 * v + 0.1 * g * g;
      const double m_hat = m / (1 - std::pow(0.8, t));
      const double v_hat = v / (1 - std::pow(0.9, t));
      p -= 0.01 * (m_hat / (std::sqrt(v_hat) + 1e-3) + (i < 9 ? 0.5 : 0.0) * p);
    }
    CHECK(static_cast<double>(got[i]) == Approx(p).epsilon(2e-6).margin(1e-7));
  }
}

TEST_CASE("the numbers are the same bit for bit whatever ranges the update is cut into",
          "[optim]") {
  const Range whole{0, 14};
  const std::vector<Range> cut{{0, 1}, {1, 8}, {8, 11}, {11, 14}};
  CHECK(after_three_updates({&whole, 1}) == after_three_updates(cut));
}

}  // namespace
}  // namespace dstrain
