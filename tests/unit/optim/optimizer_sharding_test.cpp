// However the state is cut among ranks, the numbers are the same.
#include <catch2/catch.hpp>

#include "tests/unit/optim/optimizer_lab.h"

namespace dstrain::test {
namespace {

/// Elementwise optimizers and Muon; LAMB's norms are sums of slices (lamb_test.cpp).
std::vector<OptimizerConfig> exact_optimizers() {
  return {{.kind = OptimizerKind::kAdamW, .epsilon = 1e-3, .weight_decay = 0.5},
          {.kind = OptimizerKind::kAdam, .epsilon = 1e-3, .weight_decay = 0.5},
          {.kind = OptimizerKind::kSgd, .weight_decay = 0.5},
          {.kind = OptimizerKind::kSgd, .weight_decay = 0.5, .momentum = 0.9, .nesterov = true},
          {.kind = OptimizerKind::kAdagrad, .epsilon = 1e-3, .weight_decay = 0.5},
          {.kind = OptimizerKind::kRmsprop, .weight_decay = 0.5, .momentum = 0.9},
          {.kind = OptimizerKind::kRmsprop, .weight_decay = 0.5, .centered = true},
          {.kind = OptimizerKind::kLion, .weight_decay = 0.5},
          {.kind = OptimizerKind::kMuon, .weight_decay = 0.5, .momentum = 0.9, .nesterov = true}};
}

void same_bits_on_2_3_and_4_ranks(LabRun run) {
  const LabModel model = small_model();
  run.params = changing_params;
  run.ranks = 1;
  const LabState whole = after_updates(model, run);
  for (const int ranks : {2, 3, 4}) {
    CAPTURE(static_cast<int>(run.config.kind), run.config.momentum, ranks);
    run.ranks = ranks;
    const LabState cut = after_updates(model, run);
    CHECK(cut.master == whole.master);
    CHECK(cut.first_moment == whole.first_moment);
    CHECK(cut.second_moment == whole.second_moment);
    CHECK(cut.parameters == whole.parameters);
  }
}

}  // namespace

TEST_CASE("slices on any number of ranks have the bits of the whole", "[optim][sharding]") {
  for (const OptimizerConfig& config : exact_optimizers()) {
    same_bits_on_2_3_and_4_ranks({.config = config});
    same_bits_on_2_3_and_4_ranks(
        {.config = config, .compute = DType::kBF16, .gradient = DType::kBF16});
    same_bits_on_2_3_and_4_ranks(
        {.config = config, .compute = DType::kF16, .gradient = DType::kF16});
  }
}

TEST_CASE("stochastic rounding has the same bits on any number of ranks", "[optim][sharding]") {
  for (const OptimizerConfig& config : exact_optimizers()) {
    if (config.kind == OptimizerKind::kMuon) {
      continue;  // keeps f32
    }
    for (const DType master : {DType::kF32, DType::kBF16}) {
      same_bits_on_2_3_and_4_ranks({.config = config,
                                    .compute = DType::kBF16,
                                    .gradient = DType::kBF16,
                                    .moments = DType::kBF16,
                                    .master = master});
    }
  }
}

TEST_CASE("another seed, unit or update rounds by other bits", "[optim][sharding]") {
  // Two units alike, whose state after one update lies between bf16 numbers.
  LabModel model;
  for (const char* name : {"a", "b"}) {
    model.blueprint.begin_unit(name);
    model.blueprint.add_param({.name = std::string(name) + ".w", .shape = {64}});
  }
  model.start = [](int /*unit*/, std::int64_t /*i*/) { return 1.0; };
  model.gradient = [](std::int64_t /*update*/, int /*unit*/, std::int64_t /*i*/) {
    return -0x1p-8;
  };
  const auto rounded = [&](std::uint64_t seed, std::int64_t update) {
    return after_updates(model, {.config = {.kind = OptimizerKind::kSgd},
                                 .updates = 1,
                                 .compute = DType::kBF16,
                                 .master = DType::kBF16,
                                 .params =
                                     [=](std::int64_t /*update*/) {
                                       return UpdateParams{
                                           .learning_rate = 1.0, .update = update, .seed = seed};
                                     }})
        .master;
  };
  const std::vector<Values> base = rounded(1, 1);
  CHECK(base == rounded(1, 1));
  CHECK(base[0] != base[1]);
  CHECK(base[0] != rounded(2, 1)[0]);
  CHECK(base[0] != rounded(1, 2)[0]);
}

}  // namespace dstrain::test
