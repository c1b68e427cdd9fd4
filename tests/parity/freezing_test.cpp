// Tensors that are not trained: they stay, the others move as if all were trained, nothing is
// planned for them but themselves, and every layout follows one rank.
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/checkpoint/checkpoint_error.h"
#include "tests/harness/resumable_run.h"
#include "tests/harness/tiny_model.h"
#include "tests/parity/partly_trained.h"
#include "tests/parity/tiny_family.h"
#include "tests/parity/zero_ladder.h"

namespace dstrain::test {
namespace {

using nlohmann::json;

struct Frozen {
  const char* name;
  Family family;
  TensorPatterns tensors;
};

const std::vector<Frozen>& frozen_sets() {
  static const std::vector<Frozen> sets = {
      {"lower half", Family::kLlama, {{"embedding.*", "blocks.0.*"}}},
      {"halves of blocks", Family::kLlama, {{"*.attention.*", "final_norm.*"}}},
      {"head and norms", Family::kLlama, {{"head.*", "*norm*"}}},
      {"matrices", Family::kGpt2, {{"*.weight"}}},
      {"all but a block's feed-forward",
       Family::kGpt2,
       {{"embedding.*", "final_norm.*", "head.*", "blocks.0.*", "blocks.1.[!m]*"}}}};
  return sets;
}

TinyOptions options_of(const Frozen& frozen) {
  TinyOptions options;
  options.family = frozen.family;
  options.freeze = frozen.tensors;
  return options;
}

/// The masters of one rank's run, by name.
std::map<std::string, std::vector<float>> masters_of(const TinyOptions& options) {
  std::map<std::string, std::vector<float>> masters;
  for (const HeldPiece& held : train_tiny(options).held) {
    if (held.state == "parameter") masters[held.piece.tensor] = held.values;
  }
  return masters;
}

std::int64_t bytes_of(const TinyRun& run, RegionKind kind) {
  std::int64_t bytes = 0;
  for (const Region& region : run.regions) {
    bytes += region.kind == kind ? region.bytes : 0;
  }
  return bytes;
}

/// One step, whose gradients are not clipped, leaves what is frozen as it began, and makes of the
/// rest what it would without.
void check_one_step(TinyOptions options) {
  const TensorPatterns frozen = options.freeze;
  options.steps = 1;
  options.gradient_clipping = 0.0;
  const auto after = masters_of(options);
  const double rate = std::exchange(options.learning_rate, 0.0);
  const auto before = masters_of(options);
  options.learning_rate = rate;
  options.freeze = {};
  const auto all_trained = masters_of(options);
  int stayed = 0;
  for (const auto& [name, values] : after) {
    INFO(name);
    const bool is_frozen = frozen.covers(name);
    CHECK(values == (is_frozen ? before : all_trained).at(name));
    stayed += is_frozen ? 1 : 0;
  }
  CHECK(stayed > 0);
  CHECK(stayed < static_cast<int>(after.size()));
  CHECK(after != before);
  CHECK(after != all_trained);
}

TEST_CASE("a frozen tensor stays, and the others move as they would", "[parity]") {
  for (const Frozen& frozen : frozen_sets()) {
    INFO(frozen.name);
    check_one_step(options_of(frozen));
  }
  for (const std::string& family : kFamilies) {
    for (const char* const pattern : {"*.attention.*", "*.mlp.*", "embedding.*"}) {
      INFO(family << ", " << pattern);
      TinyOptions options = tiny_family(family);
      options.freeze = {{pattern}};
      check_one_step(options);
    }
  }
}

TEST_CASE("8-bit products of frozen matrices train the rest to the same bits", "[parity][fp8]") {
  TinyOptions options;
  options.model = tiny_model_in_16s(Family::kLlama);
  options.sequence = 16;
  options.precision = Precision::kBF16;
  options.fp8 = {.enabled = true, .amax_history = 4};
  for (const char* const pattern : {"*.attention.*", "*.mlp.*"}) {
    options.freeze = {{pattern}};
    check_one_step(options);
  }
}

TEST_CASE("experts apart follow one rank where they, or all else, are frozen",
          "[parity][experts]") {
  for (const std::string family : {"mixtral", "gpt_oss", "deepseek_v3"}) {
    const std::vector<TensorPatterns> sets = {
        {{"*.experts.*"}}, {{"embedding.*", "*.attention.*", "*norm*", "*.router.*", "head.*"}}};
    for (const TensorPatterns& frozen : sets) {
      INFO(family << ", " << frozen.patterns.front());
      TinyOptions options = tiny_experts(family);
      options.steps = 4;
      options.freeze = frozen;
      const TinyRun single = train_tiny(options);
      options.expert_parallel.size = 2;
      options.micro_batch /= 2;
      options.zero_stage = 3;
      const std::vector<TinyRun> runs = train_ranks(2, options);
      check_plan(runs);
      CHECK(worst_relative(runs[0].losses, single.losses) < 1e-5);
    }
  }
}

TEST_CASE("what is frozen has no gradient, no master and no moments", "[parity]") {
  TinyOptions options = options_of(frozen_sets().front());
  options.steps = 1;
  for (const Precision precision : {Precision::kF32, Precision::kBF16, Precision::kF16}) {
    options.precision = precision;
    const TinyRun run = train_tiny(options);
    std::int64_t trained = 0;
    std::int64_t parameters = 0;
    for (const HeldPiece& held : run.held) {
      const bool is_frozen = options.freeze.covers(held.piece.tensor);
      if (held.state == "parameter") {
        parameters += static_cast<std::int64_t>(held.values.size());
        trained += is_frozen ? 0 : static_cast<std::int64_t>(held.values.size());
      } else {
        CHECK_FALSE(is_frozen);
      }
    }
    // Units are padded to ShardMap::kAlignment.
    const auto holds = [&](RegionKind kind, std::int64_t elements, std::int64_t each) {
      const std::int64_t bytes = bytes_of(run, kind);
      CHECK(bytes >= elements * each);
      CHECK(bytes < (elements + run.num_units * ShardMap::kAlignment) * each);
    };
    const bool is_narrow = precision != Precision::kF32;
    holds(RegionKind::kParameters, parameters, is_narrow ? 2 : 4);
    holds(RegionKind::kGradients, trained, 4);
    holds(RegionKind::kFirstMoment, trained, 4);
    holds(RegionKind::kSecondMoment, trained, 4);
    if (is_narrow) holds(RegionKind::kMaster, trained, 4);
    CHECK(trained < parameters);
  }
}

TEST_CASE("ZeRO's stages have the same bits with frozen tensors", "[parity]") {
  for (const Frozen& frozen : frozen_sets()) {
    for (const Formats& formats : kFormats) {
      INFO(frozen.name << ", " << formats.name);
      TinyOptions options = options_of(frozen);
      options.precision = formats.precision;
      options.formats = formats.formats;
      options.micro_batch = 2;
      options.steps = 3;
      const std::vector<TinyRun> plain = train_ranks(2, options);
      check_plan(plain);
      // As without frozen tensors, stages 2 and 3 round after a wider wire, 0 and 1 before it.
      const bool wider_wire = formats.formats.communication == DType::kF32;
      std::vector<TinyRun> reference = plain;
      for (const int stage : {1, 2, 3}) {
        INFO("stage " << stage);
        std::vector<TinyRun> runs = train_ranks(2, with_stage(options, stage));
        check_plan(runs);
        if (stage == 2 && wider_wire) reference = runs;
        check_same_bits(runs, reference);
      }
    }
  }
}

TEST_CASE("every layout follows one rank with frozen tensors", "[parity]") {
  for (const Frozen& frozen : frozen_sets()) {
    INFO(frozen.name);
    check_layouts(options_of(frozen));
  }
}

TEST_CASE("a run with frozen tensors goes on as if it had not stopped", "[parity]") {
  const RunFolder folder;
  const json changes = {{"training", {{"freeze", {"embedding.*", "*.attention.*"}}}},
                        {"zero_optimization", {{"stage", 3}}},
                        {"bf16", {{"enabled", true}}}};
  const auto train = [&](const std::string& output, int steps) {
    run(config_of(folder, output, steps, 2, changes), 2);
    return metrics_of(folder, output);
  };
  const std::vector<json> straight = train("straight", 8);
  train("stopped", 4);
  CHECK(train("stopped", 8) == straight);
}

TEST_CASE("a run that trains what its checkpoint did not is told so", "[parity]") {
  const RunFolder folder;
  const auto train = [&](int steps, const json& frozen) {
    run(config_of(folder, "run", steps, 1, {{"training", {{"freeze", frozen}}}}), 1);
  };
  train(2, {"embedding.*", "*.attention.*"});
  try {
    train(4, {"*.attention.*"});
    FAIL("it has no moments of the embedding");
  } catch (const CheckpointError& error) {
    CHECK_THAT(error.what(), Catch::Contains("did not train") && Catch::Contains("\"embedding.") &&
                                 Catch::Contains("training.freeze"));
  }
}

}  // namespace
}  // namespace dstrain::test
