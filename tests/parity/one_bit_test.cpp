// The optimizers of the 1-bit family in whole steps: what travels is what is planned, all ranks
// stay the same, no layout of the same data-parallel ranks moves a bit, and runs resume exactly,
// with what was not sent yet.
#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>

#include <catch2/catch.hpp>

#include "engine/checkpoint/checkpoint_store.h"
#include "engine/train/load_states.h"
#include "engine/train/make_run_plan.h"
#include "engine/train/training_state.h"
#include "tests/harness/resumable_run.h"
#include "tests/harness/thread_world.h"
#include "tests/harness/tiny_model.h"
#include "tests/parity/sent_and_owed.h"
#include "tests/parity/whole_state.h"

namespace dstrain::test {
namespace {

using nlohmann::json;
using enum OptimizerKind;

OptimizerConfig one_bit(OptimizerKind kind) {
  return {.kind = kind,
          .beta2 = 0.95,
          .weight_decay = 0.1,
          .bias_correction = false,
          .freeze_step = 6,
          .var_update_scaler = 2,
          .local_step_scaler = 3,
          .local_step_clipper = 4,
          .coeff_beta = 0.5};
}

/// The config file's words for the same, but frozen after 3 updates.
json one_bit_keys(const std::string& type) {
  json params{{"lr", 3e-3}, {"betas", {0.9, 0.95}}, {"weight_decay", 0.1}};
  if (type == "ZeroOneAdam") {
    params["var_freeze_step"] = 3;
    params["var_update_scaler"] = 1;
    params["local_step_scaler"] = 1;
    params["local_step_clipper"] = 3;
  } else {
    params["freeze_step"] = 3;
  }
  return {{"optimizer", {{"type", type}, {"params", params}}},
          {"zero_optimization", {{"stage", 0}}}};
}

}  // namespace

TEST_CASE("1-bit optimizers learn, send what is planned and keep their ranks alike",
          "[parity][optim][onebit]") {
  for (const OptimizerKind kind : {kOneBitAdam, kZeroOneAdam, kOneBitLamb}) {
    for (const Precision precision : {Precision::kF32, Precision::kBF16}) {
      for (const int ranks : {1, 2, 4}) {
        CAPTURE(static_cast<int>(kind), static_cast<int>(precision), ranks);
        const TinyOptions options{.precision = precision,
                                  .accumulation = 2,
                                  .gradient_clipping = 1.0,
                                  .learning_rate = kind == kOneBitLamb ? 0.02 : 3e-3,
                                  .optimizer = one_bit(kind),
                                  .steps = 16};
        const auto runs = train_ranks(ranks, options);
        for (const TinyRun& run : runs) {
          CHECK(run.unplanned_traffic.empty());
          CHECK(run.arena_bytes == run.plan_bytes);
          CHECK(run.parameters == runs[0].parameters);  // masters: what all ranks agree on
          CHECK(run.grad_norms == runs[0].grad_norms);
        }
        CHECK(runs[0].losses.back() < 0.95 * runs[0].losses.front());
      }
    }
  }
}

TEST_CASE("before signs travel a 1-bit optimizer gives the bits of the other one",
          "[parity][optim][onebit]") {
  for (const auto& [kind, plain] :
       {std::pair{kOneBitAdam, kAdamW}, {kZeroOneAdam, kAdamW}, {kOneBitLamb, kLamb}}) {
    CAPTURE(static_cast<int>(kind));
    TinyOptions options{.gradient_clipping = 1.0, .optimizer = one_bit(kind), .steps = 6};
    options.optimizer.var_update_scaler = 100;
    const auto signs = train_ranks(2, options);
    options.optimizer.kind = plain;
    const auto exact = train_ranks(2, options);
    CHECK(signs[0].losses == exact[0].losses);
    CHECK(signs[0].parameters == exact[0].parameters);
  }
}

TEST_CASE("signs do not depend on the other axes of a layout", "[parity][optim][onebit]") {
  for (const OptimizerKind kind : {kOneBitAdam, kZeroOneAdam, kOneBitLamb}) {
    CAPTURE(static_cast<int>(kind));
    TinyOptions options{.accumulation = 2, .optimizer = one_bit(kind), .steps = 12};
    const auto plain = train_ranks(2, options);
    TinyOptions staged = options;
    staged.pipeline.stages = 2;
    const auto in_stages = train_ranks(4, staged);
    CHECK(in_stages.back().losses == plain[0].losses);
    CHECK(in_stages[0].unplanned_traffic.empty());
    if (kind == kOneBitLamb) continue;  // it needs whole tensors
    for (const bool tied : {false, true}) {
      TinyOptions split = staged;
      split.tied = tied;
      split.tensor_parallel = {.size = 2, .sequence_parallel = true};
      split.sequence = 20;
      const auto parts = train_ranks(8, split);
      std::vector<std::vector<HeldPiece>> held;
      for (const TinyRun& run : parts) {
        CHECK(run.unplanned_traffic.empty());
        held.push_back(run.held);
        // Momenta differ between data-parallel ranks while they step alone.
        std::erase_if(held.back(), [&](const HeldPiece& piece) {
          return kind == kZeroOneAdam && piece.state == "exp_avg";
        });
      }
      std::vector<std::string> faults;
      static_cast<void>(whole_state(held, faults));
      CHECK(faults == std::vector<std::string>{});  // copies on tensor-parallel ranks and stages
      CHECK(parts.back().losses.back() < 0.95 * parts.back().losses.front());
    }
  }
}

TEST_CASE("signs are 1/32 of f32 and 1/16 of bf16 on the wire", "[parity][optim][onebit]") {
  ModelSpec model = tiny_model(Family::kLlama);
  model.hidden_size = 256;
  model.head_dim = 64;
  model.intermediate_size = 704;
  model.vocab_size = 4096;
  for (const DType wire : {DType::kF32, DType::kBF16}) {
    TinyOptions options{.model = model,
                        .precision = wire == DType::kF32 ? Precision::kF32 : Precision::kBF16,
                        .optimizer = one_bit(kOneBitAdam)};
    options.formats.communication = wire;
    for (const int ranks : {2, 8, 64}) {
      const RunPlan plan = make_run_plan(tiny_config(options, ranks), ranks, 0);
      const double ratio = gradient_bytes(plan, GradientTravel::kCoded) /
                           gradient_bytes(plan, GradientTravel::kSummed);
      CAPTURE(ranks, ratio);
      CHECK(ratio >= (wire == DType::kF32 ? 1.0 / 32 : 1.0 / 16));
      CHECK(ratio < 1.03 * (wire == DType::kF32 ? 1.0 / 32 : 1.0 / 16));
    }
  }
}

TEST_CASE("a step that is skipped leaves no trace in what is unsent", "[parity][optim][onebit]") {
  for (const char* type : {"OneBitAdam", "ZeroOneAdam", "OneBitLamb"}) {
    CAPTURE(type);
    // 20: the scale is looked for in the first steps, each of which is skipped; a window of 2 makes
    // it grow beyond the limit again once signs travel.
    const json fp16{
        {"fp16", {{"enabled", true}, {"initial_scale_power", 20}, {"loss_scale_window", 2}}}};
    const RunFolder folder;
    CHECK(run(config_of(folder, "straight", 24, 2, merged(fp16, one_bit_keys(type))), 2).step ==
          24);
    const auto lines = metrics_of(folder, "straight");
    REQUIRE(lines.size() == 24);
    int skipped_late = 0;
    for (std::size_t step = 12; step < lines.size(); ++step) {
      skipped_late += lines[step].at("skipped").get<int>();
      CHECK(std::isfinite(lines[step].at("loss").get<double>()));
    }
    CHECK(skipped_late > 0);
    CHECK(lines.back().at("loss").get<double>() < lines.front().at("loss").get<double>());
  }
}

TEST_CASE("1-bit optimizers resume with the bits of the uninterrupted run, unsent remainders too",
          "[parity][optim][onebit][resume]") {
  const json formats = GENERATE(json::object(), json{{"bf16", {{"enabled", true}}}});
  for (const char* type : {"OneBitAdam", "ZeroOneAdam", "OneBitLamb"}) {
    for (const bool background : {false, true}) {
      CAPTURE(type, background, formats.dump());
      json changes = merged(formats, one_bit_keys(type));
      if (background) changes["checkpoint"] = {{"interval", 4}, {"async", true}};
      const RunFolder folder;
      CHECK(run(config_of(folder, "straight", 9, 2, changes), 2).step == 9);
      for (const int first : {2, 5, 8}) {  // in warm-up, and after it
        const std::string name = fmt::format("parts{}", first);
        CHECK(run(config_of(folder, name, first, 2, changes), 2).step == first);
        CHECK(run(config_of(folder, name, 9, 2, changes), 2).step == 9);
        CHECK(data_files(folder, name, 2) == data_files(folder, "straight", 2));
      }
    }
  }
}

TEST_CASE("a run resumes where the update that freezes the variance is another one",
          "[parity][optim][onebit][resume]") {
  const auto frozen_after = [](const char* type, int updates) {
    json keys = one_bit_keys(type);
    const bool zero_one = std::string(type) == "ZeroOneAdam";
    keys["optimizer"]["params"][zero_one ? "var_freeze_step" : "freeze_step"] = updates;
    return keys;
  };
  for (const char* type : {"OneBitAdam", "ZeroOneAdam", "OneBitLamb"}) {
    for (const auto& [before, after] : {std::pair{100, 3}, {3, 100}, {4, 2}}) {
      CAPTURE(type, before, after);
      const RunFolder folder;
      CHECK(run(config_of(folder, "run", 5, 2, frozen_after(type, before)), 2).step == 5);
      const LoadedConfig rest = config_of(folder, "run", 16, 2, frozen_after(type, after));
      if (std::string(type) == "OneBitLamb" && before == 100) {  // its fresh variance begins as v
        const auto world = make_local_rendezvous(1);
        Config one = config_of(folder, "run", 16, 1, frozen_after(type, after)).config;
        Engine engine(make_run_plan(one, 1, 0), *world[0], make_cpu_backend(1), 1);
        static_cast<void>(
            load_states(engine, *CheckpointStore(folder.path() / "run" / "checkpoints").latest()));
        for (int unit = 0; unit < engine.plan().shards.num_units(); ++unit) {
          const auto fresh = engine.arena().unit(RegionKind::kThirdMoment, unit).as<float>();
          const auto second = engine.arena().unit(RegionKind::kSecondMoment, unit).as<float>();
          CHECK(std::equal(fresh.begin(), fresh.end(), second.begin()));
          CHECK(std::any_of(fresh.begin(), fresh.end(), [](float v) { return v > 0.0F; }));
        }
      }
      CHECK(run(rest, 2).step == 16);  // masters that differ between ranks would end it
      const auto lines = metrics_of(folder, "run");
      REQUIRE(lines.size() == 16);
      for (std::size_t step = 5; step < 16; ++step) {
        CHECK(lines[step].at("loss").get<double>() < 1.02 * lines[0].at("loss").get<double>());
      }
    }
  }
}

TEST_CASE("other numbers of ranks take over what is unsent", "[parity][optim][onebit][resume]") {
  for (const char* type : {"OneBitAdam", "ZeroOneAdam", "OneBitLamb"}) {
    const RunFolder folder;
    // Eight ranks take eight sequences in one micro-batch each.
    const json changes = merged(one_bit_keys(type), {{"gradient_accumulation_steps", 1}});
    CHECK(run(config_of(folder, "run", 5, 4, changes), 4).step == 5);
    const std::filesystem::path checkpoint = newest_checkpoint(folder, "run");
    const auto owed_by = [&](int ranks) {
      return owed(config_of(folder, "run", 8, ranks, changes), checkpoint, ranks);
    };
    const auto before = owed_by(4);
    for (const int ranks : {1, 2, 8}) {
      CAPTURE(type, ranks);
      check_owed(owed_by(ranks), before);
      const std::string copy = fmt::format("on{}", ranks);
      std::filesystem::copy(folder.path() / "run", folder.path() / copy,
                            std::filesystem::copy_options::recursive);
      CHECK(run(config_of(folder, copy, 9, ranks, changes), ranks).step == 9);
      const auto lines = metrics_of(folder, copy);
      CHECK(lines.back().at("loss").get<double>() < lines.front().at("loss").get<double>());
    }
  }
}

}  // namespace dstrain::test
