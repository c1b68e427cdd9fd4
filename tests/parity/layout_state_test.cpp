// A checkpoint's tensors, bit by bit, whatever the layouts that saved and load it.
// layout_resume_test continues training; here nothing may change at all.
#include <iterator>

#include <catch2/catch.hpp>

#include "engine/checkpoint/checkpoint_store.h"
#include "engine/train/make_run_plan.h"
#include "engine/train/training_state.h"
#include "tests/harness/processes.h"
#include "tests/harness/sweep.h"
#include "tests/harness/thread_world.h"
#include "tests/parity/whole_state.h"

namespace dstrain::test {
namespace {

struct Model {
  Family family;
  bool tied;
};
// GPT-2's table of 67 rows on 2 and 4 ranks has rows beyond the vocabulary, and its positions lie
// behind them; LLaMA's 2 key/value heads on 4 ranks are shared.
const Model kModels[] = {{Family::kGpt2, false}, {Family::kGpt2, true}, {Family::kLlama, true}};

struct Layout {
  int data = 1;
  int tensor = 1;
  int pipeline = 1;
  int zero = 0;
  int shard_ranks = -1;
  [[nodiscard]] int ranks() const { return data * tensor * pipeline; }
};

const Layout kLayouts[] = {{1, 1, 1, 0}, {4, 1, 1, 3}, {2, 2, 1, 2}, {1, 2, 2, 0},   {2, 2, 2, 2},
                           {1, 4, 1, 1}, {2, 2, 2, 3}, {1, 2, 4, 0}, {6, 1, 1, 3, 2}};

TinyOptions options_of(const Layout& layout, const Model& model) {
  TinyOptions options{.family = model.family,
                      .tied = model.tied,
                      .model = tiny_model(model.family),
                      .micro_batch = 2,
                      .accumulation = 2,
                      .zero_stage = layout.zero,
                      .zero = {.shard_ranks = layout.shard_ranks, .param_persistence_threshold = 0},
                      .tensor_parallel = {.size = layout.tensor},
                      .pipeline = {.stages = layout.pipeline}};
  options.model->num_layers = 5;
  return options;
}

/// The state that `work` leaves in the engines of a layout's ranks.
template <typename Work>
WholeState state_after(const Layout& layout, const TinyOptions& options, const Work& work) {
  const Config config = tiny_config(options, layout.ranks());
  const auto held = thread_world(layout.ranks(), [&](Rendezvous& rank) {
    Engine engine(make_run_plan(config, rank.world_size(), rank.world_rank()), rank,
                  make_cpu_backend(1), 1);
    work(engine);
    return held_state(engine);
  });
  std::vector<std::string> faults;
  WholeState state = whole_state(held, faults);
  CHECK(faults == std::vector<std::string>{});
  return state;
}

TEST_CASE("every layout starts from the same bits", "[parity][resume]") {
  const Model model = GENERATE(from_range(std::begin(kModels), std::end(kModels)));
  CAPTURE(model.family == Family::kGpt2, model.tied);
  const auto initial = [&](const Layout& layout) {
    return state_after(layout, options_of(layout, model), [](Engine&) {});
  };
  const WholeState alone = initial({});
  for (const Layout& layout : kLayouts) {
    CAPTURE(layout.data, layout.tensor, layout.pipeline, layout.zero);
    CHECK(differences(initial(layout), alone) == std::vector<std::string>{});
  }
}

TEST_CASE("any layout loads the bits that any other saved", "[parity][resume]") {
  const Model model = GENERATE(from_range(std::begin(kModels), std::end(kModels)));
  CAPTURE(model.family == Family::kGpt2, model.tied);
  int met = 0;
  for (const Layout& from : kLayouts) {
    const testing::TemporaryFolder folder;
    CheckpointStore store(folder.path());
    const TinyOptions options = options_of(from, model);
    const WholeState saved = state_after(from, options, [&](Engine& engine) {
      train_tiny_step(engine, options, 0);
      engine.wait_for_communication();
      CheckpointStore(folder.path())
          .save({.step = 1}, state_tensors(engine, StateExtent::kMySlice), 1, engine.world());
    });
    for (const Layout& to : kLayouts) {
      if (met++ % testing::one_in_if_sanitized(7) != 0) continue;
      CAPTURE(from.data, from.tensor, from.pipeline, to.data, to.tensor, to.pipeline);
      const WholeState loaded = state_after(to, options_of(to, model), [&](Engine& engine) {
        CheckpointStore::load(*store.latest(), state_tensors(engine, StateExtent::kEverything));
      });
      CHECK(differences(loaded, saved) == std::vector<std::string>{});
    }
  }
}

}  // namespace
}  // namespace dstrain::test
