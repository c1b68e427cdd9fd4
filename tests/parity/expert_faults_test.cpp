// Public reports of faults in mixtures of experts that no error tells and that a loss curve hides
// for long, each as a training run that would show it here.
#include <cmath>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/train/rank_report.h"
#include "kernels/core/caller_stream.h"
#include "tests/harness/local_rendezvous.h"
#include "tests/harness/thread_world.h"
#include "tests/harness/tiny_model.h"
#include "tests/parity/tiny_family.h"

namespace dstrain::test {
namespace {

TinyOptions experts_of(const std::string& family, float balance, float z) {
  TinyOptions options = tiny_experts(family);
  options.model->experts.balance_coefficient = balance;
  options.model->experts.z_coefficient = z;
  options.model->adds_balance_loss = balance > 0.0F;
  options.gradient_clipping = 0.0;
  options.optimizer = {.kind = OptimizerKind::kSgd, .weight_decay = 0.0};
  return options;
}

struct Layout {
  const char* name;
  int ranks;
  TinyOptions options;
};

std::vector<Layout> layouts_of(const TinyOptions& alone) {
  std::vector<Layout> layouts{{"one rank", 1, alone}};
  const auto add = [&](const char* name, int ranks, const auto& change) {
    layouts.push_back({name, ranks, alone});
    change(layouts.back().options);
  };
  add("micro-batches", 1, [](TinyOptions& o) { o.micro_batch = 2, o.accumulation = 4; });
  add("data", 2, [](TinyOptions& o) { o.micro_batch = 4, o.zero_stage = 2; });
  add("tensor", 2, [](TinyOptions& o) { o.tensor_parallel.size = 2; });
  add("tensor, sequence parallel", 2, [](TinyOptions& o) {
    o.tensor_parallel = {.size = 2, .sequence_parallel = true};
    o.sequence = 20;
  });
  add("pipeline", 2, [](TinyOptions& o) {
    o.pipeline = {.stages = 2};
    o.micro_batch = 2;
    o.accumulation = 4;
  });
  add("other experts", 2, [](TinyOptions& o) { o.micro_batch = 4, o.expert_parallel.size = 2; });
  return layouts;
}

/// What a step says of the sum that it trains on, and of that sum's gradient.
struct Objective {
  double total = 0.0;  ///< the loss, and the others times their coefficients
  double gradient_norm = 0.0;
  std::vector<LayerRouting> routing;
};

/// A step on always the same batch.
Objective take_step(Engine& engine, TinyOptions options, double learning_rate) {
  options.learning_rate = learning_rate;
  const EngineStep step = train_tiny_step(engine, options, 0);
  CallerStream host;
  double loss_sum = 0.0;
  for (const RankReport& report :
       gather_reports({.loss_sum = step.local_loss_sum}, engine.world(), host)) {
    loss_sum += report.loss_sum;
  }
  const ExpertsSpec& experts = options.model->experts;
  const double balance = static_cast<double>(experts.balance_coefficient);
  const double z = static_cast<double>(experts.z_coefficient);
  return {.total = loss_sum / static_cast<double>(step.counted) +
                   balance * mean_balance_loss(step.routing).value_or(0.0) +
                   z * mean_z_loss(step.routing).value_or(0.0),
          .gradient_norm = step.stats.grad_norm,
          .routing = step.routing};
}

struct Fall {
  Objective before;
  Objective after{};
  double expected = 0.0;
};

/// NeMo Automodel 1408: an auxiliary loss that is computed and told, and whose gradient is lost;
/// and where it was not, was divided by the number of data-parallel ranks. Megatron-LM 5047: the
/// gradient of both losses depends on the number of tensor-parallel ranks.
///
/// A small step against the gradient g lowers what is trained on by rate · |g|², which the figures
/// that a run tells must show.
TEST_CASE("told losses fall as their gradients say, in every layout", "[parity][experts]") {
  struct Weights {
    const char* family;
    float balance;
    float z;
  };
  for (const Weights weights : {Weights{"mixtral", 30.0F, 0.0F},
                                {"mixtral", 0.0F, 3.0F},
                                {"mixtral", 1.0F, 0.1F},
                                {"deepseek_v2", 1.0F, 0.1F}}) {
    for (const Layout& layout :
         layouts_of(experts_of(weights.family, weights.balance, weights.z))) {
      const auto runs = thread_world(layout.ranks, [&](Rendezvous& rendezvous) {
        const Config config = tiny_config(layout.options, layout.ranks);
        const auto engine = make_tiny_engine(config, rendezvous, nullptr);
        Fall fall{.before = take_step(*engine, layout.options, 0.0)};
        const double slope = fall.before.gradient_norm * fall.before.gradient_norm;
        const double rate = 3e-5 * fall.before.total / slope;
        static_cast<void>(take_step(*engine, layout.options, rate));
        fall.after = take_step(*engine, layout.options, 0.0);
        fall.expected = rate * slope;
        return fall;
      });
      for (const Fall& fall : runs) {
        CAPTURE(layout.name, weights.family, weights.balance, weights.z, fall.expected);
        for (std::size_t i = 0; i < fall.before.routing.size(); ++i) {  // which have no slope
          REQUIRE(fall.after.routing[i].chosen == fall.before.routing[i].chosen);
        }
        CHECK((fall.before.total - fall.after.total) / fall.expected == Approx(1.0).epsilon(0.005));
      }
    }
  }
}

/// Automodel 1408 again, as its users saw it: experts that stay as unevenly chosen as without it.
TEST_CASE("an auxiliary loss makes experts evenly chosen", "[parity][experts]") {
  constexpr double kEven = 3.0;  // the loss where all experts are chosen alike
  const auto unevenness_after = [](float balance) {
    TinyOptions options = experts_of("mixtral", balance, 0.0F);
    options.optimizer = {.weight_decay = 0.0};
    options.model->initializer_range = 0.2F;  // uneven from the first step on
    options.steps = 60;
    return *mean_balance_loss(train_tiny(options).routing.back()) - kEven;
  };
  const double with = unevenness_after(1.0F);
  const double without = unevenness_after(1e-9F);
  CHECK(with > 0.0);
  CHECK(with < 0.5 * without);
}

/// Megatron-LM 1628: with experts' matrices cut by their width over ranks, another loss curve than
/// with whole experts on each of them.
TEST_CASE("experts cut by their width train as experts cut by their number", "[parity][experts]") {
  for (const std::string family : {"mixtral", "qwen3_moe"}) {
    TinyOptions alone = experts_of(family, 0.1F, 0.01F);
    alone.optimizer = {.weight_decay = 0.1};
    alone.steps = 10;
    TinyOptions by_width = alone;
    by_width.tensor_parallel.size = 4;
    TinyOptions by_number = alone;
    by_number.expert_parallel.size = 4;
    by_number.micro_batch = 2;
    const TinyRun reference = train_tiny(alone);
    for (const TinyOptions& cut : {by_width, by_number}) {
      CAPTURE(family, cut.tensor_parallel.size);
      for (const TinyRun& run : train_ranks(4, cut)) {
        CHECK(worst_relative(run.losses, reference.losses) < 1e-5);
        CHECK(worst_relative(run.grad_norms, reference.grad_norms) < 1e-5);
      }
    }
  }
}

/// DeepSpeed 8475: norms averaged over ranks as if all had the same experts, so that clipping
/// depends on which rank has which. Every step is clipped here.
TEST_CASE("what gradients are clipped by does not depend on who has which expert",
          "[parity][experts]") {
  TinyOptions alone = experts_of("mixtral", 0.1F, 0.01F);
  alone.gradient_clipping = 0.1;
  alone.learning_rate = 0.5;
  alone.steps = 10;
  const TinyRun reference = train_tiny(alone);
  for (const double norm : reference.grad_norms) {
    CHECK(norm > 2 * alone.gradient_clipping);
  }
  for (const int size : {1, 2, 4}) {
    for (const int zero : {0, 1, 2, 3}) {
      CAPTURE(size, zero);
      TinyOptions shared = alone;
      shared.expert_parallel.size = size;
      shared.micro_batch = 2;
      shared.zero_stage = zero;
      for (const TinyRun& run : train_ranks(4, shared)) {
        CHECK(worst_relative(run.losses, reference.losses) < 1e-5);
        CHECK(worst_relative(run.grad_norms, reference.grad_norms) < 1e-5);
      }
    }
  }
}

}  // namespace
}  // namespace dstrain::test
