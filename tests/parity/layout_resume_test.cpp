// A checkpoint belongs to no layout: stopped on one set of ranks, resumed on another.
#include <filesystem>

#include <catch2/catch.hpp>

#include "engine/checkpoint/checkpoint_store.h"
#include "engine/train/make_run_plan.h"
#include "engine/train/training_state.h"
#include "tests/harness/resumable_run.h"
#include "tests/harness/sweep.h"
#include "tests/harness/thread_world.h"
#include "tests/parity/whole_state.h"

namespace dstrain::test {
namespace {

using nlohmann::json;

struct Layout {
  const char* name;
  int ranks;
  json changes;
};

json layout(int stage, int tensor, bool sequence, int pipeline) {
  return {{"zero_optimization", {{"stage", stage}, {"stage3_param_persistence_threshold", 0}}},
          {"tensor_parallel", {{"size", tensor}, {"sequence_parallel", sequence && tensor > 1}}},
          {"pipeline", {{"stages", pipeline}}},
          {"gradient_accumulation_steps", 2},
          {"model", {{"tie_word_embeddings", true}}},
          {"data", {{"sequence_length", 20}}}};
}

std::vector<Layout> all_layouts() {
  return {{"one rank", 1, layout(0, 1, false, 1)},
          {"dp 4, ZeRO 3", 4, layout(3, 1, false, 1)},
          {"dp 4 in twos", 4,
           merged(layout(3, 1, false, 1), {{"zero_optimization", {{"mics_shard_size", 2}}}})},
          {"dp 2, sequences shared by 2, ZeRO 3", 4,
           merged(layout(3, 1, false, 1), {{"context_parallel", {{"size", 2}}}})},
          {"dp 2, tp 2, sequence parallel", 4, layout(0, 2, true, 1)},
          {"tp 4, shared heads", 4, layout(1, 4, false, 1)},
          {"tp 2, pp 2", 4, layout(0, 2, false, 2)},
          {"dp 2, tp 2, pp 2, ZeRO 2", 8, layout(2, 2, true, 2)}};
}

std::vector<Layout> expert_layouts() {
  const auto experts = [](const json& of, int size) {
    return merged(of, {{"model",
                        {{"model_type", "mixtral"},
                         {"num_local_experts", 4},
                         {"num_experts_per_tok", 2},
                         {"sliding_window", 9},
                         {"output_router_logits", true},
                         {"router_aux_loss_coef", 0.1}}},
                       {"expert_parallel", {{"size", size}}}});
  };
  const auto whole = [](const json& of) {
    return merged(of, {{"expert_parallel", {{"tensor_size", 1}}}});
  };
  return {{"one rank with experts", 1, experts(layout(0, 1, false, 1), 1)},
          {"dp 4, experts over 4", 4, experts(layout(0, 1, false, 1), 4)},
          {"dp 4, experts over 2, ZeRO 3", 4, experts(layout(3, 1, false, 1), 2)},
          {"sequences shared by 2, experts over 4, ZeRO 3", 4,
           merged(experts(layout(3, 1, false, 1), 4), {{"context_parallel", {{"size", 2}}}})},
          {"dp 2, tp 2, experts over 2, ZeRO 1", 4, experts(layout(1, 2, true, 1), 2)},
          {"dp 2, tp 2, whole experts, ZeRO 1", 4, whole(experts(layout(1, 2, true, 1), 1))},
          {"dp 2, tp 2, whole experts over 4, ZeRO 3", 4, whole(experts(layout(3, 2, true, 1), 4))},
          {"dp 2, pp 2, experts over 2, ZeRO 2", 4, experts(layout(2, 1, false, 2), 2)}};
}

/// A checkpoint's parameters and optimizer state, whole, as the ranks of a layout load it.
WholeState loaded_state(const std::filesystem::path& checkpoint,
                        const LoadedConfig& config,
                        int ranks) {
  const auto held = thread_world(ranks, [&](Rendezvous& rank) {
    Engine engine(make_run_plan(config.config, rank.world_size(), rank.world_rank()), rank,
                  make_cpu_backend(1), 1);
    CheckpointStore::load(checkpoint, state_tensors(engine, StateExtent::kEverything));
    return held_state(engine);
  });
  std::vector<std::string> faults;
  WholeState state = whole_state(held, faults);
  CHECK(faults == std::vector<std::string>{});
  return state;
}

TEST_CASE("any layout resumes what any other saved", "[parity][resume]") {
  const std::vector<Layout> layouts = GENERATE(all_layouts(), expert_layouts());
  namespace fs = std::filesystem;
  const RunFolder folder;
  CHECK(run(config_of(folder, "straight", 8, 1, layouts.front().changes), 1).step == 8);
  const auto straight = metrics_of(folder, "straight");
  REQUIRE(straight.size() == 8);
  int met = 0;
  for (const Layout& from : layouts) {
    const LoadedConfig saving = config_of(folder, "saved", 4, from.ranks, from.changes);
    CHECK(run(saving, from.ranks).step == 4);
    const fs::path saved = folder.path() / "saved" / "checkpoints" / "step-00000004";
    const WholeState as_saved = loaded_state(saved, saving, from.ranks);
    for (const Layout& to : layouts) {
      if (met++ % testing::one_in_if_sanitized(5) != 0) continue;
      CAPTURE(from.name, to.name);
      const LoadedConfig resuming = config_of(folder, "resumed", 8, to.ranks, to.changes);
      CHECK(differences(loaded_state(saved, resuming, to.ranks), as_saved) ==
            std::vector<std::string>{});
      fs::copy(folder.path() / "saved", folder.path() / "resumed", fs::copy_options::recursive);
      CHECK(run(resuming, to.ranks).step == 8);
      const auto lines = metrics_of(folder, "resumed");
      REQUIRE(lines.size() == 8);
      for (std::size_t step = 0; step < 8; ++step) {
        CHECK(lines[step]["loss"].get<double>() ==
              Approx(straight[step]["loss"].get<double>()).epsilon(1e-5));
        CHECK(lines[step]["grad_norm"].get<double>() ==
              Approx(straight[step]["grad_norm"].get<double>()).epsilon(1e-4));
      }
      // Nothing is lost on the way back either.
      const fs::path back = folder.path() / "resumed" / "checkpoints" / "step-00000008";
      CHECK(differences(loaded_state(back, saving, from.ranks),
                        loaded_state(back, resuming, to.ranks)) == std::vector<std::string>{});
      fs::remove_all(folder.path() / "resumed");
    }
    fs::remove_all(folder.path() / "saved");
  }
}

TEST_CASE("stopping and resuming in one layout changes no bit", "[parity][resume]") {
  for (const Layout& place : GENERATE(all_layouts(), expert_layouts())) {
    CAPTURE(place.name);
    const RunFolder folder;
    const LoadedConfig whole = config_of(folder, "whole", 8, place.ranks, place.changes);
    CHECK(run(whole, place.ranks).step == 8);
    CHECK(run(config_of(folder, "parts", 4, place.ranks, place.changes), place.ranks).step == 4);
    CHECK(run(config_of(folder, "parts", 8, place.ranks, place.changes), place.ranks).step == 8);
    CHECK(metrics_of(folder, "parts") == metrics_of(folder, "whole"));
    CHECK(state_of(folder, "parts", whole) == state_of(folder, "whole", whole));
  }
}

}  // namespace
}  // namespace dstrain::test
