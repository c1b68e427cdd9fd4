// Gradients compressed by PowerSGD or by their largest numbers, in whole steps: what travels is
// what is planned, all ranks stay the same, error feedback loses nothing, and runs resume exactly,
// with what was not sent yet.
#include <algorithm>
#include <cmath>
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
constexpr auto kPowerSgd = CompressionKind::kPowerSgd;
constexpr auto kTopK = CompressionKind::kTopK;

/// Matrices of 4096 elements and more, and keys and values of fewer.
ModelSpec compressible_model() {
  ModelSpec model = tiny_model(Family::kLlama);
  model.vocab_size = 131;
  model.hidden_size = 64;
  model.head_dim = 16;
  model.intermediate_size = 96;
  return model;
}

CompressionConfig compression(CompressionKind kind, std::int64_t start_step = 3) {
  return {.kind = kind, .start_step = start_step, .rank = 2, .density = 0.02};
}

/// Gradients go into the parameters as they are.
TinyOptions plain_sgd(CompressionConfig compression) {
  return {.model = compressible_model(),
          .learning_rate = 0.1,
          .optimizer = {.kind = OptimizerKind::kSgd},
          .compression = compression,
          .steps = 6};
}

double worst_difference(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    worst = std::max(worst, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  }
  return worst;
}

json compressed_keys(const std::string& kind, int stage) {
  json block{{"kind", kind}, {"start_step", 3}};
  if (kind == "powersgd") block["rank"] = 2;
  if (kind == "top_k") block["density"] = 0.02;
  return {{"gradient_compression", block},
          {"zero_optimization", {{"stage", stage}}},
          {"model", {{"hidden_size", 64}, {"intermediate_size", 96}}}};
}

std::vector<float> floats_of(const Tensor& tensor) {
  const std::span<const float> values = tensor.as<float>();
  return {values.begin(), values.end()};
}

void add(std::vector<double>& sums, const std::vector<float>& values, double factor) {
  sums.resize(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    sums[i] += factor * static_cast<double>(values[i]);
  }
}

/// Of each element of the compressed matrices, summed over all steps: what a rank's own gradients
/// were and what all ranks applied; and what the rank has not sent.
struct Account {
  std::vector<double> own;
  std::vector<double> applied;
  std::vector<double> unsent;
};

Account account_of(Rendezvous& rank, const TinyOptions& options) {
  const Config config = tiny_config(options, rank.world_size());
  const std::unique_ptr<Engine> engine = make_tiny_engine(config, rank, nullptr);
  const auto values = [&](RegionKind kind) {
    std::vector<float> all;
    for (const CompressionLayout::Row& row : engine->plan().memory.options().compression->rows()) {
      const auto part =
          floats_of(engine->arena().unit(kind, row.unit).flat(row.range.begin, row.range.end));
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  };
  Account account;
  const double own_factor = engine->plan().update.averaging.after_sum * rank.world_size();
  for (int step = 0; step < options.steps; ++step) {
    train_tiny_step(*engine, options, step, [&] {
      engine->settle();
      engine->context().compute.synchronize();
      add(account.own, values(RegionKind::kGradients), own_factor);
    });
    engine->context().compute.synchronize();
    add(account.applied, values(RegionKind::kGradients), 1.0);
  }
  add(account.unsent, values(RegionKind::kUnsent), 1.0);
  return account;
}

}  // namespace

TEST_CASE("compressed gradients learn, send what is planned and keep their ranks alike",
          "[parity][compression]") {
  for (const CompressionKind kind : {kPowerSgd, kTopK}) {
    for (const Precision precision : {Precision::kF32, Precision::kBF16}) {
      for (const int stage : {0, 1}) {
        for (const int ranks : {1, 2, 4}) {
          CAPTURE(static_cast<int>(kind), static_cast<int>(precision), stage, ranks);
          const TinyOptions options{.model = compressible_model(),
                                    .precision = precision,
                                    .accumulation = 2,
                                    .gradient_clipping = 1.0,
                                    .zero_stage = stage,
                                    .compression = compression(kind),
                                    .steps = 14};
          const auto runs = train_ranks(ranks, options);
          for (const TinyRun& run : runs) {
            CHECK(run.unplanned_traffic.empty());
            CHECK(run.arena_bytes == run.plan_bytes);
            CHECK(run.parameters == runs[0].parameters);
            CHECK(run.grad_norms == runs[0].grad_norms);
          }
          CHECK(runs[0].losses.back() < 0.9 * runs[0].losses.front());
        }
      }
    }
  }
}

TEST_CASE("stages 0 and 1 take the same from compressed gradients", "[parity][compression]") {
  for (const CompressionKind kind : {kPowerSgd, kTopK}) {
    CAPTURE(static_cast<int>(kind));
    TinyOptions options{
        .model = compressible_model(), .compression = compression(kind), .steps = 8};
    const auto whole = train_ranks(4, options);
    options.zero_stage = 1;
    const auto cut = train_ranks(4, options);
    CHECK(cut[0].losses == whole[0].losses);
    CHECK(cut[0].parameters == whole[0].parameters);
  }
}

TEST_CASE("offloaded states take the same from compressed gradients", "[parity][compression]") {
  for (const CompressionKind kind : {kPowerSgd, kTopK}) {
    TinyOptions options{.accumulation = 2,
                        .gradient_clipping = 1.0,
                        .zero_stage = 1,
                        .compression = {.kind = kind, .start_step = 2, .rank = 2, .density = 0.1},
                        .steps = 6};
    options.model = tiny_model(Family::kLlama);
    options.model->vocab_size = 256;  // tables of at least 4096 elements
    const auto here = train_ranks(2, options);
    options.states = Space::kDisk;
    const auto on_disk = train_ranks(2, options);
    CHECK(on_disk[0].losses == here[0].losses);
    CHECK(on_disk[0].parameters == here[0].parameters);
    CHECK(on_disk[0].arena_spaces == on_disk[0].plan_spaces);
  }
}

TEST_CASE("updates before start_step have the bits of a run without compression",
          "[parity][compression]") {
  for (const CompressionKind kind : {kPowerSgd, kTopK}) {
    TinyOptions options{
        .model = compressible_model(), .compression = compression(kind, 6), .steps = 6};
    const auto compressed = train_ranks(2, options);
    options.steps = 7;
    const auto later = train_ranks(2, options);
    options.compression = {};
    const auto exact = train_ranks(2, options);
    CHECK(later[0].losses == exact[0].losses);
    CHECK(later[0].parameters != exact[0].parameters);
    options.steps = 6;
    CHECK(compressed[0].parameters == train_ranks(2, options)[0].parameters);
  }
}

TEST_CASE("all numbers, and as many columns as gradients have, are the exact sums",
          "[parity][compression]") {
  TinyOptions all = plain_sgd({.kind = kTopK, .start_step = 0, .density = 1.0});
  TinyOptions none = all;
  none.compression = {};
  CHECK(worst_difference(train_ranks(4, all)[0].parameters, train_ranks(4, none)[0].parameters) <
        1e-6);
  // Eight tokens: no gradient of a matrix has more than eight columns that the others do not give.
  TinyOptions thin = plain_sgd({.kind = kPowerSgd, .start_step = 0, .rank = 8});
  thin.sequence = 4;
  thin.micro_batch = 1;
  thin.steps = 4;
  TinyOptions exact = thin;
  exact.compression = {};
  const auto compressed = train_ranks(2, thin);
  const auto plain = train_ranks(2, exact);
  // The products are f32, and the smallest of the eight directions stand out little from rounding.
  CHECK(worst_difference(compressed[0].parameters, plain[0].parameters) < 1e-4);
  // And with fewer there is a difference.
  thin.compression.rank = 1;
  CHECK(worst_difference(train_ranks(2, thin)[0].parameters, plain[0].parameters) > 1e-3);
}

TEST_CASE("what is not sent is kept: nothing of any gradient is lost", "[parity][compression]") {
  for (const CompressionKind kind : {kPowerSgd, kTopK}) {
    for (const int ranks : {1, 2, 4}) {
      CAPTURE(static_cast<int>(kind), ranks);
      TinyOptions options = plain_sgd(compression(kind, 0));
      options.steps = 10;
      const auto accounts =
          thread_world(ranks, [&](Rendezvous& rank) { return account_of(rank, options); });
      double worst = 0.0;
      double largest = 0.0;
      double unsent = 0.0;
      for (std::size_t i = 0; i < accounts[0].applied.size(); ++i) {
        double own = 0.0;
        double left = 0.0;
        for (const Account& account : accounts) {
          own += account.own[i] / ranks;
          left += account.unsent[i] / ranks;
        }
        worst = std::max(worst, std::abs(own - left - accounts[0].applied[i]));
        largest = std::max(largest, std::abs(own));
        unsent = std::max(unsent, std::abs(left));
      }
      CAPTURE(worst, largest, unsent);
      CHECK(largest > 0.0);
      CHECK(worst < 1e-5 * largest);
      CHECK((ranks == 1 ? unsent == 0.0 : unsent > 1e-3 * largest));
    }
  }
}

TEST_CASE("compressed gradients do not depend on stages, and split matrices keep their ranks alike",
          "[parity][compression]") {
  for (const CompressionKind kind : {kPowerSgd, kTopK}) {
    CAPTURE(static_cast<int>(kind));
    TinyOptions options{.model = compressible_model(),
                        .accumulation = 2,
                        .compression = compression(kind),
                        .steps = 8};
    options.sequence = 20;
    const auto plain = train_ranks(2, options);
    TinyOptions staged = options;
    staged.pipeline.stages = 2;
    const auto in_stages = train_ranks(4, staged);
    CHECK(in_stages.back().losses == plain[0].losses);
    for (const TinyRun& run : in_stages) {
      CHECK(run.unplanned_traffic.empty());
    }
    for (const bool tied : {false, true}) {
      TinyOptions split = staged;
      split.tied = tied;
      split.tensor_parallel = {.size = 2, .sequence_parallel = true};
      const auto parts = train_ranks(8, split);
      std::vector<std::vector<HeldPiece>> held;
      for (const TinyRun& run : parts) {
        CHECK(run.unplanned_traffic.empty());
        CHECK(run.arena_bytes == run.plan_bytes);
        held.push_back(run.held);
      }
      std::vector<std::string> faults;
      static_cast<void>(whole_state(held, faults));
      CHECK(faults == std::vector<std::string>{});
      CHECK(parts.back().losses.back() < parts.back().losses.front());
    }
  }
}

TEST_CASE("compressed gradients are a small part of exact ones on the wire",
          "[parity][compression]") {
  ModelSpec model = tiny_model(Family::kLlama);
  model.hidden_size = 512;
  model.head_dim = 128;
  model.intermediate_size = 1408;
  model.vocab_size = 8192;
  TinyOptions options{.model = model, .compression = {.kind = kPowerSgd, .rank = 4}};
  const auto ratio = [&](int ranks) {
    const RunPlan plan = make_run_plan(tiny_config(options, ranks), ranks, 0);
    return gradient_bytes(plan, GradientTravel::kCoded) /
           gradient_bytes(plan, GradientTravel::kSummed);
  };
  CHECK(ratio(8) < 1.0 / 60);
  CHECK(ratio(64) == Approx(ratio(8)));
  // 6 bytes a number from each of n ranks, where a sum takes 8 whatever n is.
  options.compression = {.kind = kTopK, .density = 0.01};
  CHECK(ratio(2) == Approx(0.01 * 6 * 2 / 8).epsilon(0.05));
  CHECK(ratio(8) == Approx(0.01 * 6 * 8 / 8).epsilon(0.05));
}

TEST_CASE("a step that is skipped leaves no trace in what compression has not sent",
          "[parity][compression]") {
  for (const char* kind : {"powersgd", "top_k"}) {
    for (const int stage : {0, 1}) {
      CAPTURE(kind, stage);
      const json fp16{
          {"fp16", {{"enabled", true}, {"initial_scale_power", 20}, {"loss_scale_window", 2}}}};
      const RunFolder folder;
      CHECK(run(config_of(folder, "straight", 24, 2, merged(fp16, compressed_keys(kind, stage))), 2)
                .step == 24);
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
}

TEST_CASE("compressed runs resume with the bits of the uninterrupted run, with what is unsent",
          "[parity][compression][resume]") {
  for (const char* kind : {"powersgd", "top_k"}) {
    for (const int stage : {0, 1}) {
      for (const bool background : {false, true}) {
        CAPTURE(kind, stage, background);
        json changes = compressed_keys(kind, stage);
        if (background) changes["checkpoint"] = {{"interval", 4}, {"async", true}};
        const RunFolder folder;
        CHECK(run(config_of(folder, "straight", 9, 2, changes), 2).step == 9);
        for (const int first : {2, 6}) {  // before compression, and after
          const std::string name = fmt::format("parts{}", first);
          CHECK(run(config_of(folder, name, first, 2, changes), 2).step == first);
          CHECK(run(config_of(folder, name, 9, 2, changes), 2).step == 9);
          CHECK(data_files(folder, name, 2) == data_files(folder, "straight", 2));
        }
      }
    }
  }
}

TEST_CASE("other numbers of ranks, and runs without compression, go on from compressed ones",
          "[parity][compression][resume]") {
  for (const char* kind : {"powersgd", "top_k"}) {
    const RunFolder folder;
    // Eight ranks take eight sequences in one micro-batch each.
    const json changes = merged(compressed_keys(kind, 1), {{"gradient_accumulation_steps", 1}});
    CHECK(run(config_of(folder, "run", 6, 4, changes), 4).step == 6);
    const auto checkpoint = newest_checkpoint(folder, "run");
    const auto owed_by = [&](int ranks) {
      return owed(config_of(folder, "run", 8, ranks, changes), checkpoint, ranks);
    };
    const auto before = owed_by(4);
    for (const int ranks : {1, 2, 8}) {
      CAPTURE(kind, ranks);
      check_owed(owed_by(ranks), before);
      const std::string copy = fmt::format("on{}", ranks);
      std::filesystem::copy(folder.path() / "run", folder.path() / copy,
                            std::filesystem::copy_options::recursive);
      json rest = changes;
      if (ranks == 8) rest["gradient_compression"] = {{"kind", "none"}};
      CHECK(run(config_of(folder, copy, 9, ranks, rest), ranks).step == 9);
      const auto lines = metrics_of(folder, copy);
      CHECK(lines.back().at("loss").get<double>() < lines.front().at("loss").get<double>());
    }
  }
}

TEST_CASE("PowerSGD's factors are drawn again where a checkpoint has others",
          "[parity][compression][resume]") {
  const RunFolder folder;
  json changes = compressed_keys("powersgd", 0);
  CHECK(run(config_of(folder, "run", 6, 2, changes), 2).step == 6);
  changes["gradient_compression"]["rank"] = 3;
  CHECK(run(config_of(folder, "run", 9, 2, changes), 2).step == 9);
  changes = compressed_keys("top_k", 1);
  CHECK(run(config_of(folder, "run", 12, 2, changes), 2).step == 12);
  const auto lines = metrics_of(folder, "run");
  CHECK(lines.back().at("loss").get<double>() < lines.front().at("loss").get<double>());
}

}  // namespace dstrain::test
