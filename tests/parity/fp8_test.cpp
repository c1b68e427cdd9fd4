// Training in 8 bits: near what bf16 trains, the same in every ZeRO stage, near itself in every
// layout, and the same after a stop.
#include <cmath>

#include <catch2/catch.hpp>

#include "engine/train/make_run_plan.h"
#include "tests/harness/resumable_run.h"
#include "tests/harness/thread_world.h"
#include "tests/harness/tiny_model.h"

namespace dstrain::test {
namespace {

TinyOptions in_8_bits(Family family) {
  return {.family = family,
          .model = tiny_model_in_16s(family),
          .precision = Precision::kBF16,
          .sequence = 24,
          .micro_batch = 2,
          .accumulation = 2,
          .fp8 = {.enabled = true, .amax_history = 4},
          .steps = 8};
}

TinyOptions in_bf16(TinyOptions options) {
  options.fp8.enabled = false;
  return options;
}

TEST_CASE("8 bits train near bf16, and are not bf16", "[parity][fp8]") {
  for (const Family family : {Family::kGpt2, Family::kLlama}) {
    CAPTURE(family);
    TinyOptions options = in_8_bits(family);
    options.steps = 30;
    const TinyRun narrow = train_tiny(options);
    const TinyRun wide = train_tiny(in_bf16(options));
    CHECK(narrow.losses.back() < 0.8 * narrow.losses.front());
    // 3 mantissa bits: each number is wrong by up to 6 %, and at random.
    CHECK(worst_relative(narrow.losses, wide.losses) < 0.01);
    CHECK(worst_relative(narrow.grad_norms, wide.grad_norms) < 0.15);
    CHECK(narrow.losses.front() != wide.losses.front());
    CHECK(narrow.arena_bytes == narrow.plan_bytes);
  }
}

TEST_CASE("every ZeRO stage trains in 8 bits to the same bits", "[parity][fp8][zero]") {
  for (const Family family : {Family::kGpt2, Family::kLlama}) {
    TinyOptions options = in_8_bits(family);
    options.accumulation = 1;  // sums over micro-batches are made in another order by stage 2
    const std::vector<TinyRun> reference = train_ranks(2, options);
    for (const int stage : {1, 2, 3}) {
      CAPTURE(family, stage);
      options.zero_stage = stage;
      const std::vector<TinyRun> runs = train_ranks(2, options);
      CHECK(runs[0].losses == reference[0].losses);
      CHECK((runs[0].parameters == reference[0].parameters));
    }
  }
}

TEST_CASE("recomputing changes no bit in 8 bits", "[parity][fp8][recompute]") {
  TinyOptions options = in_8_bits(Family::kLlama);
  const TinyRun reference = train_tiny(options);
  options.recompute.granularity =
      GENERATE(RecomputeGranularity::kSelective, RecomputeGranularity::kFull);
  const TinyRun run = train_tiny(options);
  CHECK(run.losses == reference.losses);
  CHECK((run.parameters == reference.parameters));
}

struct Layout {
  std::string name;
  int ranks;
  TinyOptions options;
};

TEST_CASE("every layout in 8 bits is near one rank", "[parity][fp8][layout]") {
  for (const Family family : {Family::kGpt2, Family::kLlama}) {
    const TinyOptions alone = in_8_bits(family);
    const TinyRun reference = train_tiny(alone);
    std::vector<Layout> layouts(5, {"dp2", 2, alone});
    layouts[0].options.accumulation = 1;
    layouts[1] = {"tp2 + sp", 2, alone};
    layouts[1].options.tensor_parallel = {.size = 2, .sequence_parallel = true};
    layouts[2] = {"pp2", 2, alone};
    layouts[2].options.pipeline = {.stages = 2};
    layouts[4] = {"sequences shared by 2", 2, alone};
    layouts[4].options.micro_batch = 4;  // 48 tokens a rank: a multiple of 16
    layouts[4].options.accumulation = 1;
    layouts[4].options.context_parallel = {.size = 2, .kind = ContextKind::kRing};
    layouts[3] = {"tp2 pp2 zero1 x2", 8, alone};
    layouts[3].options.accumulation = 1;
    layouts[3].options.zero_stage = 1;
    layouts[3].options.tensor_parallel = {.size = 2};
    layouts[3].options.pipeline = {.stages = 2};
    for (const Layout& layout : layouts) {
      CAPTURE(family, layout.name);
      const std::vector<TinyRun> runs = train_ranks(layout.ranks, layout.options);
      // Sums in another order move a number by a bf16 step, which now and then is a step of 8 bits.
      CHECK(worst_relative(runs[0].losses, reference.losses) < 2e-3);
      CHECK(worst_relative(runs[0].grad_norms, reference.grad_norms) < 0.06);
      for (const TinyRun& run : runs) {
        CHECK(run.arena_bytes == run.plan_bytes);
      }
    }
  }
}

TEST_CASE("the first step in 8 bits is the same however its batch is shared out", "[parity][fp8]") {
  for (const Family family : {Family::kGpt2, Family::kLlama}) {
    TinyOptions alone = in_8_bits(family);
    alone.accumulation = 4;
    alone.steps = 1;
    const TinyRun reference = train_tiny(alone);
    for (const int ranks : {2, 4}) {
      for (const int stage : {0, 3}) {
        CAPTURE(family, ranks, stage);
        TinyOptions options = alone;
        options.accumulation = 4 / ranks;
        options.zero_stage = stage;
        const std::vector<TinyRun> runs = train_ranks(ranks, options);
        // The same scales and micro-batches: only the sum over ranks has another order.
        CHECK(worst_relative(runs[0].losses, reference.losses) < 1e-6);
      }
    }
  }
}

TEST_CASE("histories of scales are those of one rank in every layout", "[parity][fp8][layout]") {
  const TinyOptions alone = in_8_bits(Family::kLlama);
  const auto histories = [](int ranks, TinyOptions options) {
    options.steps = 1;  // the parameters are the same until then
    return thread_world(ranks, [&](Rendezvous& rank) {
      const Config config = tiny_config(options, rank.world_size());
      Engine engine(make_run_plan(config, rank.world_size(), rank.world_rank()), rank,
                    make_cpu_backend(1), 1);
      train_tiny_step(engine, options, 0);
      return engine.fp8_state();
    });
  };
  const Fp8Scales::State reference = histories(1, alone).front();
  CHECK(reference.size() == 2 * 4 * 3);  // blocks, layers, tensors of a layer
  TinyOptions data = alone;
  data.accumulation = 1;
  data.zero_stage = 3;
  TinyOptions pipeline = alone;
  pipeline.pipeline = {.stages = 2};
  for (const auto& [name, options] : {std::pair{"zero3 x2", data}, {"pp2", pipeline}}) {
    CAPTURE(name);
    for (const Fp8Scales::State& state : histories(2, options)) {
      CHECK((state == reference));  // each rank's own, and the same on all
    }
  }
}

TEST_CASE("a run in 8 bits continues after a stop as if there had been none",
          "[parity][fp8][resume]") {
  using nlohmann::json;
  const RunFolder folder;
  const auto config = [&](const char* output, int steps, const json& changes) {
    json whole{{"bf16", {{"enabled", true}}},
               {"fp8", {{"enabled", true}, {"amax_history_len", 3}}},
               {"model",
                {{"hidden_size", 64},
                 {"intermediate_size", 96},
                 {"num_attention_heads", 4},
                 {"num_key_value_heads", 2},
                 {"head_dim", 16}}},
               {"data", {{"sequence_length", 16}}}};
    whole.merge_patch(changes);
    return config_of(folder, output, steps, 2, whole);
  };
  const LoadedConfig straight = config("straight", 8, json::object());
  CHECK(run(straight, 2).step == 8);
  CHECK(run(config("parts", 5, json::object()), 2).step == 5);
  CHECK(run(config("parts", 8, json::object()), 2).step == 8);
  auto parts = metrics_of(folder, "parts");
  parts[4].erase("validation_loss");  // the first part evaluated at its own end
  parts[4].erase("validation_token_accuracy");
  CHECK(parts == metrics_of(folder, "straight"));
  CHECK(state_of(folder, "parts", straight) == state_of(folder, "straight", straight));

  // From bf16, which has no histories, into 8 bits, and back.
  CHECK(run(config("mixed", 3, {{"fp8", {{"enabled", false}, {"amax_history_len", nullptr}}}}), 2)
            .step == 3);
  CHECK(run(config("mixed", 5, json::object()), 2).step == 5);
  CHECK(run(config("mixed", 8, {{"fp8", {{"enabled", false}, {"amax_history_len", nullptr}}}}), 2)
            .step == 8);
  const double loss = metrics_of(folder, "mixed").back().at("loss");
  CHECK(loss ==
        Approx(metrics_of(folder, "straight").back().at("loss").get<double>()).epsilon(0.02));
}

}  // namespace
}  // namespace dstrain::test
