// Sequences that grow: a step of fewer tokens is the step of a run that was planned for so many, in
// every layout, and in the memory that was planned for the longest.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/train/make_run_plan.h"
#include "engine/train/shorter_sequences.h"
#include "tests/harness/resumable_run.h"
#include "tests/harness/thread_world.h"
#include "tests/harness/tiny_model.h"

namespace dstrain::test {
namespace {

using nlohmann::json;

/// The first tokens of samples that are as long as the longest sequences.
LoadBatch samples_of(const Config& config, std::size_t length, std::size_t kept) {
  return [vocab = config.model.vocab_size, length, kept](std::int64_t first_sample,
                                                         std::span<std::int32_t> inputs,
                                                         std::span<std::int32_t> targets) {
    std::vector<std::int32_t> whole_inputs(length);
    std::vector<std::int32_t> whole_targets(length);
    for (std::size_t row = 0; row * kept < inputs.size(); ++row) {
      synthetic_sample(first_sample + static_cast<std::int64_t>(row), vocab, whole_inputs,
                       whole_targets);
      std::copy_n(whole_inputs.begin(), kept,
                  inputs.begin() + static_cast<std::ptrdiff_t>(row * kept));
      std::copy_n(whole_targets.begin(), kept,
                  targets.begin() + static_cast<std::ptrdiff_t>(row * kept));
    }
  };
}

struct Steps {
  std::vector<double> losses;
  std::vector<double> grad_norms;
  std::vector<HeldPiece> held;
};

std::vector<Steps> train(int ranks, const TinyOptions& options, std::int64_t short_length) {
  return thread_world(ranks, [&](Rendezvous& rank) {
    const Config config = tiny_config(options, rank.world_size());
    const auto engine = make_tiny_engine(config, rank, nullptr);
    const auto T = static_cast<std::size_t>(options.sequence);
    const LoadBatch load = samples_of(config, 19, T);
    Steps steps;
    for (int step = 0; step < options.steps; ++step) {
      const EngineStep result =
          engine->train_step(load, step * engine->plan().batch.global_samples(),
                             {.learning_rate = 3e-3,
                              .update = step + 1,
                              .gradient_clipping = 0.5,
                              .sequence = short_length});
      steps.losses.push_back(result.local_loss_sum);
      steps.grad_norms.push_back(result.stats.grad_norm);
      // Evaluations are of whole sequences, and leave no trace.
      if (options.sequence != short_length) static_cast<void>(engine->evaluate(load, 1000));
    }
    steps.held = held_state(*engine);
    return steps;
  });
}

TEST_CASE("a step of shorter sequences is that of a run planned for them", "[parity][ramp]") {
  struct Layout {
    const char* name;
    int ranks;
    TinyOptions options;
  };
  std::vector<Layout> layouts;
  const auto add = [&](const char* name, int ranks, auto&& change) {
    TinyOptions options{.micro_batch = 2, .accumulation = 2, .steps = 3};
    change(options);
    layouts.push_back({name, ranks, options});
  };
  add("one rank", 1, [](TinyOptions&) {});
  add("gpt2, tied", 1, [](TinyOptions& o) {
    o.family = Family::kGpt2;
    o.tied = true;
  });
  add("bf16, recomputed", 1, [](TinyOptions& o) {
    o.precision = Precision::kBF16;
    o.recompute.granularity = RecomputeGranularity::kFull;
  });
  add("documents", 1,
      [](TinyOptions& o) { o.documents = {.end = 3, .attention = true, .masks_borders = true}; });
  add("dp 2, zero 3", 2, [](TinyOptions& o) { o.zero_stage = 3; });
  add("tp 2, sequence parallel", 2,
      [](TinyOptions& o) { o.tensor_parallel = {.size = 2, .sequence_parallel = true}; });
  add("pp 2", 2, [](TinyOptions& o) { o.pipeline.stages = 2; });
  add("pp 2, tp 2, gpipe", 4, [](TinyOptions& o) {
    o.pipeline = {.stages = 2, .schedule = ScheduleKind::kGpipe};
    o.tensor_parallel = {.size = 2};
  });
  for (const Layout& layout : layouts) {
    for (const std::int64_t length : {1, 7, 18}) {
      CAPTURE(layout.name, length);
      TinyOptions planned = layout.options;
      planned.sequence = length;
      const std::vector<Steps> expected = train(layout.ranks, planned, length);
      const std::vector<Steps> steps = train(layout.ranks, layout.options, length);
      for (std::size_t rank = 0; rank < steps.size(); ++rank) {
        CHECK(steps[rank].losses == expected[rank].losses);
        CHECK(steps[rank].grad_norms == expected[rank].grad_norms);
        REQUIRE(steps[rank].held.size() == expected[rank].held.size());
        for (std::size_t i = 0; i < steps[rank].held.size(); ++i) {
          CHECK(steps[rank].held[i].values == expected[rank].held[i].values);
        }
      }
    }
  }
}

TEST_CASE("buffers of shorter sequences fit into those of the longest", "[parity][ramp]") {
  TinyOptions options{.sequence = 500, .micro_batch = 3};
  options.model = tiny_model(Family::kLlama);
  options.model->max_positions = 500;
  options.model->vocab_size = 200'003;  // logits are computed in several parts
  if (GENERATE(false, true)) options.mlp_tile_tokens = options.loss_tile_tokens = 400;
  const RunPlan plan = make_run_plan(tiny_config(options, 1), 1, 0);
  for (std::int64_t length = 1; length <= 500; ++length) {
    const ShorterSequences shorter(plan, length);
    const std::vector<BufferDecl>& buffers = shorter.blueprint.buffers();
    REQUIRE(buffers.size() <= plan.blueprint.buffers().size());
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      const BufferDecl& planned = plan.blueprint.buffers()[i];
      if (buffers[i].name != planned.name || buffers[i].bytes() > planned.bytes()) {
        FAIL(buffers[i].name << " of " << length << " tokens does not fit");
      }
    }
  }
}

/// 4, 8, 12 and 16 tokens from steps 1, 2, 4 and 5 on, then all 19.
json ramped() {
  return {{"curriculum_learning",
           {{"enabled", true},
            {"curriculum_type", "seqlen"},
            {"min_difficulty", 4},
            {"max_difficulty", 19},
            {"schedule_type", "fixed_linear"},
            {"schedule_config", {{"total_curriculum_step", 6}, {"difficulty_step", 4}}}}}};
}

json with(json all, const json& changes) {
  all.merge_patch(changes);
  return all;
}

template <typename T>
std::vector<T> column(const RunFolder& folder, const std::string& output, const char* key) {
  std::vector<T> values;
  for (const json& line : metrics_of(folder, output)) {
    values.push_back(line.at(key).get<T>());
  }
  return values;
}

TEST_CASE("sequences grow on after a resume, beside a batch that grows", "[parity][ramp][resume]") {
  const RunFolder folder;
  for (const json& batch : {json::object(), json{{"rampup_batch_size", {4, 4, 10}}}}) {
    const json changes = with(ramped(), batch);
    const std::string name = batch.empty() ? "one" : "two";
    const LoadedConfig straight = config_of(folder, name, 8, 1, changes);
    CHECK(run(straight, 1).step == 8);
    const auto lengths = column<std::int64_t>(folder, name, "sequence_length");
    CHECK(lengths == std::vector<std::int64_t>{4, 8, 8, 12, 16, 16, 19, 19});
    const auto batches = column<std::int64_t>(folder, name, "batch_size");
    const auto tokens = column<std::int64_t>(folder, name, "tokens");
    std::int64_t seen = 0;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      seen += lengths[i] * batches[i];
      CHECK(tokens[i] == seen);
    }
    const std::string parts = name + ", parts";
    CHECK(run(config_of(folder, parts, 4, 1, changes), 1).step == 4);
    CHECK(run(config_of(folder, parts, 8, 1, changes), 1).step == 8);
    CHECK(metrics_of(folder, parts) == metrics_of(folder, name));
    CHECK(state_of(folder, parts, straight) == state_of(folder, name, straight));
  }
}

TEST_CASE("sequences that grow give one rank's losses in every layout", "[parity][ramp]") {
  const RunFolder folder;
  const json common = with(ramped(), {{"gradient_accumulation_steps", 4}});
  CHECK(run(config_of(folder, "one", 7, 1, common), 1).step == 7);
  const auto losses = column<double>(folder, "one", "loss");
  const auto norms = column<double>(folder, "one", "grad_norm");
  struct Layout {
    const char* name;
    int ranks;
    json changes;
  };
  const Layout layouts[] = {
      {"dp 2, zero 2", 2, {{"zero_optimization", {{"stage", 2}}}}},
      {"dp 2, zero 3", 2, {{"zero_optimization", {{"stage", 3}}}}},
      {"tp 2, sequence parallel",
       2,
       {{"tensor_parallel", {{"size", 2}, {"sequence_parallel", true}}}}},
      {"pp 2", 2, {{"pipeline", {{"stages", 2}}}}},
      {"pp 2, interleaved",
       2,
       {{"model", {{"num_hidden_layers", 4}}},
        {"pipeline", {{"stages", 2}, {"schedule", "interleaved"}, {"virtual_stages", 2}}}}},
  };
  for (const Layout& layout : layouts) {
    CAPTURE(layout.name);
    const LoadedConfig config =
        config_of(folder, layout.name, 7, layout.ranks, with(common, layout.changes));
    CHECK(run(config, layout.ranks).step == 7);
    if (config.config.model.num_layers == 4) {  // another model: its own single rank
      const json deep = with(common, {{"model", {{"num_hidden_layers", 4}}}});
      CHECK(run(config_of(folder, "deep", 7, 1, deep), 1).step == 7);
      CHECK(worst_relative(column<double>(folder, layout.name, "loss"),
                           column<double>(folder, "deep", "loss")) < 1e-5);
      continue;
    }
    CHECK(worst_relative(column<double>(folder, layout.name, "loss"), losses) < 1e-5);
    CHECK(worst_relative(column<double>(folder, layout.name, "grad_norm"), norms) < 1e-4);
  }
}

}  // namespace
}  // namespace dstrain::test
