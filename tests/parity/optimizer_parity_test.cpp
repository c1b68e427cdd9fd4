// Every optimizer in a whole training step, under every ZeRO stage.
#include <catch2/catch.hpp>

#include "tests/harness/thread_world.h"
#include "tests/harness/tiny_model.h"

namespace dstrain::test {
namespace {

TinyOptions options_for(const OptimizerConfig& optimizer, double learning_rate) {
  return {.micro_batch = 2, .learning_rate = learning_rate, .optimizer = optimizer, .steps = 6};
}

std::vector<TinyOptions> all_optimizers() {
  using enum OptimizerKind;
  return {
      options_for({.kind = kAdamW, .weight_decay = 0.1}, 3e-3),
      options_for({.kind = kAdam, .weight_decay = 0.1}, 3e-3),
      options_for({.kind = kSgd, .weight_decay = 0.1, .momentum = 0.9, .nesterov = true}, 0.05),
      options_for({.kind = kAdagrad, .weight_decay = 0.1}, 0.02),
      options_for({.kind = kRmsprop, .weight_decay = 0.1, .momentum = 0.5}, 1e-3),
      options_for({.kind = kRmsprop, .weight_decay = 0.1, .centered = true}, 1e-3),
      options_for({.kind = kLion, .weight_decay = 0.1}, 1e-3),
      options_for({.kind = kLamb, .weight_decay = 0.1}, 0.02),
      options_for({.kind = kMuon, .weight_decay = 0.1, .momentum = 0.95, .nesterov = true}, 0.01)};
}

std::vector<TinyRun> train_on_two(TinyOptions options, int stage) {
  options.zero_stage = stage;
  return thread_world(2, [&](Rendezvous& rendezvous) { return train_tiny(rendezvous, options); });
}

}  // namespace

TEST_CASE("every optimizer learns, and under ZeRO as without", "[parity][zero][optim]") {
  for (const TinyOptions& options : all_optimizers()) {
    const auto reference = train_on_two(options, 0);
    CAPTURE(static_cast<int>(options.optimizer.kind));
    CHECK(reference[0].losses.back() < reference[0].losses.front());
    for (const int stage : {1, 2, 3}) {
      CAPTURE(stage);
      const auto runs = train_on_two(options, stage);
      for (const TinyRun& run : runs) {
        CHECK(run.arena_bytes == run.plan_bytes);
        CHECK(run.parameters == runs[0].parameters);
        if (options.optimizer.kind != OptimizerKind::kLamb) {
          CHECK(run.parameters == reference[0].parameters);
          CHECK(run.losses == reference[0].losses);
          continue;
        }
        // LAMB's norms are sums over slices, in another order than over the whole.
        for (std::size_t step = 0; step < run.losses.size(); ++step) {
          CHECK(run.losses[step] == Approx(reference[0].losses[step]).epsilon(1e-6));
        }
      }
    }
  }
}

}  // namespace dstrain::test
