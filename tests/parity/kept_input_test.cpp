// Parts of blocks' inputs, kept by tensor-parallel ranks instead of all of them
// (activation_checkpointing.partition_activations): the bits of inputs kept whole, for the memory
// and the traffic that the plan says.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/harness/resumable_run.h"
#include "tests/harness/tiny_model.h"
#include "tests/parity/tiny_family.h"
#include "tests/parity/zero_ladder.h"

namespace dstrain::test {
namespace {

constexpr RecomputeGranularity kGranularities[] = {RecomputeGranularity::kSelective,
                                                   RecomputeGranularity::kFull};

std::int64_t bytes_of(const TinyRun& run, RegionKind kind) {
  for (const Region& region : run.regions) {
    if (region.kind == kind) return region.bytes;
  }
  return 0;
}

std::int64_t gathered_activations(const TinyRun& run) {
  return std::count_if(run.traffic.begin(), run.traffic.end(),
                       [](const CollectiveLog::Entry& entry) {
                         return entry.op == Op::kAllGather && entry.purpose == Purpose::kActivation;
                       });
}

struct Pair {
  std::vector<TinyRun> whole;
  std::vector<TinyRun> parts;
};

/// Trains with inputs kept whole and in parts, and requires the same bits on every rank.
Pair train_both(int ranks, TinyOptions options) {
  Pair pair;
  pair.whole = train_ranks(ranks, options);
  options.recompute.partitions_inputs = true;
  pair.parts = train_ranks(ranks, options);
  for (std::size_t rank = 0; rank < pair.whole.size(); ++rank) {
    const TinyRun& whole = pair.whole[rank];
    const TinyRun& parts = pair.parts[rank];
    CHECK(parts.losses == whole.losses);
    CHECK(parts.grad_norms == whole.grad_norms);
    CHECK((parts.parameters == whole.parameters));  // too many to print
    REQUIRE(parts.held.size() == whole.held.size());
    for (std::size_t i = 0; i < whole.held.size(); ++i) {
      CHECK((parts.held[i].values == whole.held[i].values));
    }
    CHECK(parts.arena_spaces == parts.plan_spaces);
    CHECK(parts.unplanned_traffic.empty());
    CHECK(bytes_of(parts, RegionKind::kSaved) < bytes_of(whole, RegionKind::kSaved));
  }
  return pair;
}

TEST_CASE("inputs kept in parts train to the bits of inputs kept whole, in every stage",
          "[parity][recompute][tensor]") {
  for (const RecomputeGranularity granularity : kGranularities) {
    for (const Precision precision : {Precision::kF32, Precision::kBF16, Precision::kF16}) {
      for (const int stage : {0, 1, 2, 3}) {
        CAPTURE(static_cast<int>(granularity), static_cast<int>(precision), stage);
        train_both(4, {.family = stage % 2 == 0 ? Family::kLlama : Family::kGpt2,
                       .tied = stage > 1,
                       .precision = precision,
                       .micro_batch = 2,
                       .accumulation = 2,
                       .gradient_clipping = 0.5,
                       .zero_stage = stage,
                       .recompute = {.granularity = granularity},
                       .tensor_parallel = {.size = 2},
                       .loss_scale = precision == Precision::kF16 ? 1024.0 : 1.0,
                       .steps = 3});
      }
    }
  }
}

TEST_CASE("inputs kept in parts take a t-th of the memory, and one gather a block and micro-batch",
          "[parity][recompute][tensor]") {
  const TinyOptions options{.precision = Precision::kBF16,
                            .micro_batch = 4,
                            .accumulation = 3,
                            .recompute = {.granularity = RecomputeGranularity::kFull},
                            .steps = 2};
  const std::int64_t width = tiny_model(options.family).hidden_size;
  const std::int64_t blocks = tiny_model(options.family).num_layers;
  const std::int64_t stream = 4 * options.sequence * width;  // numbers
  const auto in_lines = [](std::int64_t bytes) { return (bytes + 63) / 64 * 64; };
  for (const std::int64_t layers : {blocks, std::int64_t{1}}) {
    CAPTURE(layers);
    TinyOptions some = options;
    some.recompute.layers = layers;
    some.tensor_parallel.size = 2;
    const Pair pair = train_both(2, some);
    for (std::size_t rank = 0; rank < 2; ++rank) {
      const TinyRun& whole = pair.whole[rank];
      const TinyRun& parts = pair.parts[rank];
      CHECK(bytes_of(whole, RegionKind::kSaved) - bytes_of(parts, RegionKind::kSaved) ==
            layers * (in_lines(stream * 2) - in_lines(stream / 2 * 2)));
      CHECK(bytes_of(parts, RegionKind::kScratch) - bytes_of(whole, RegionKind::kScratch) ==
            in_lines(stream * 2));
      CHECK(gathered_activations(parts) - gathered_activations(whole) ==
            layers * options.accumulation);
    }
  }
}

TEST_CASE("inputs kept in parts, of every family's blocks", "[parity][recompute][tensor]") {
  for (const std::string& type : kFamilies) {
    for (const RecomputeGranularity granularity : kGranularities) {
      CAPTURE(type, static_cast<int>(granularity));
      TinyOptions options = tiny_family(type);
      options.model->num_layers = 2;
      options.micro_batch = 2;
      options.accumulation = 2;
      options.recompute.granularity = granularity;
      options.tensor_parallel.size = 2;
      options.steps = 2;
      train_both(2, options);
    }
  }
}

TEST_CASE("inputs kept in parts, block by block: the bits of micro-batch by micro-batch",
          "[parity][recompute][tensor][vertical]") {
  for (const RecomputeGranularity granularity : kGranularities) {
    for (const Precision precision : {Precision::kF32, Precision::kBF16, Precision::kF16}) {
      for (const int stage : {0, 2, 3}) {
        for (const std::optional<std::int64_t> layers : {std::optional<std::int64_t>{}, {1}}) {
          CAPTURE(static_cast<int>(granularity), static_cast<int>(precision), stage,
                  layers.value_or(-1));
          TinyOptions options{.family = stage == 2 ? Family::kLlama : Family::kGpt2,
                              .precision = precision,
                              .micro_batch = 2,
                              .accumulation = 3,
                              .gradient_clipping = 0.5,
                              .zero_stage = stage,
                              .recompute = {.granularity = granularity, .layers = layers},
                              .tensor_parallel = {.size = 2},
                              .loss_scale = precision == Precision::kF16 ? 1024.0 : 1.0,
                              .steps = 3};
          // Every stage reduces once a step then, as stage 0 does.
          const std::vector<TinyRun> rows = train_ranks(2, with_stage(options, 0));
          options.block_order = BlockOrder::kVertical;
          const Pair columns = train_both(2, options);
          for (std::size_t rank = 0; rank < rows.size(); ++rank) {
            CHECK(columns.parts[rank].losses == rows[rank].losses);
            CHECK(columns.parts[rank].grad_norms == rows[rank].grad_norms);
            CHECK((columns.parts[rank].parameters == rows[rank].parameters));
          }
        }
      }
    }
  }
}

TEST_CASE("inputs kept in parts, block by block, of every family's blocks",
          "[parity][recompute][tensor][vertical]") {
  for (const std::string& type : kFamilies) {
    for (const RecomputeGranularity granularity : kGranularities) {
      CAPTURE(type, static_cast<int>(granularity));
      TinyOptions options = tiny_family(type);
      // Enough of them for parts to be less than what waits between blocks.
      const bool are_alike = options.model->windowed_layers.empty() &&
                             options.model->rotary_layers.empty() &&
                             options.model->expert_layers.empty();
      if (are_alike) options.model->num_layers = 4;
      options.tied = false;
      options.micro_batch = 2;
      options.accumulation = 2;
      options.recompute.granularity = granularity;
      options.tensor_parallel.size = 2;
      options.steps = 2;
      const std::vector<TinyRun> rows = train_ranks(2, options);
      options.block_order = BlockOrder::kVertical;
      const Pair columns = train_both(2, options);
      CHECK(columns.parts[0].losses == rows[0].losses);
      CHECK((columns.parts[0].parameters == rows[0].parameters));
    }
  }
}

TEST_CASE("inputs kept in parts, in pipelines", "[parity][recompute][tensor][pipeline]") {
  for (const ScheduleKind schedule :
       {ScheduleKind::k1F1B, ScheduleKind::kGpipe, ScheduleKind::kInterleaved}) {
    for (const RecomputeGranularity granularity : kGranularities) {
      CAPTURE(static_cast<int>(schedule), static_cast<int>(granularity));
      const int chunks = schedule == ScheduleKind::kInterleaved ? 2 : 1;
      ModelSpec model = tiny_model(Family::kLlama);
      model.num_layers = 4;
      train_both(4, {.model = model,
                     .micro_batch = 1,
                     .accumulation = 4,
                     .gradient_clipping = 0.5,
                     .recompute = {.granularity = granularity},
                     .tensor_parallel = {.size = 2},
                     .pipeline = {.stages = 2, .schedule = schedule, .virtual_stages = chunks},
                     .steps = 2});
    }
  }
}

TEST_CASE("inputs kept in parts, with dropout, documents, states on a disk, and in 8 bits",
          "[parity][recompute][tensor]") {
  TinyOptions options{.family = Family::kGpt2,
                      .micro_batch = 2,
                      .accumulation = 2,
                      .recompute = {.granularity = RecomputeGranularity::kFull},
                      .tensor_parallel = {.size = 2},
                      .documents = {.end = 3, .attention = true, .masks_borders = true},
                      .dropout = {.embedding = 0.1F, .residual = 0.1F, .attention = 0.1F},
                      .steps = 3};
  options.states = Space::kDisk;
  train_both(2, options);
  train_both(2, {.model = tiny_model_in_16s(Family::kLlama),
                 .precision = Precision::kBF16,
                 .sequence = 16,
                 .micro_batch = 1,
                 .accumulation = 2,
                 .recompute = {.granularity = RecomputeGranularity::kFull},
                 .fp8 = {.enabled = true, .amax_history = 2},
                 .tensor_parallel = {.size = 2},
                 .steps = 3});
}

TEST_CASE("a run with inputs kept in parts skips the steps of one without, and learns the same",
          "[parity][recompute][tensor]") {
  const RunFolder folder;
  const auto losses_of = [&](const std::string& name, bool partitions) {
    const nlohmann::json changes = {
        {"fp16", {{"enabled", true}, {"initial_scale_power", 22}, {"hysteresis", 1}}},
        {"zero_optimization", {{"stage", 1}}},
        {"tensor_parallel", {{"size", 2}}},
        {"activation_checkpointing",
         {{"granularity", "full"}, {"partition_activations", partitions}}}};
    const LoadedConfig config = config_of(folder, name, 10, 4, changes);
    CHECK(config.config.recompute.partitions_inputs == partitions);
    run(config, 4);
    std::vector<double> numbers;
    int skipped = 0;
    for (const nlohmann::json& step : metrics_of(folder, name)) {
      numbers.push_back(step["loss"].get<double>());
      numbers.push_back(step["loss_scale"].get<double>());
      skipped += step["skipped"].get<int>() > 0 ? 1 : 0;
    }
    CHECK(numbers.size() == 20);
    CHECK(skipped > 0);
    CHECK(skipped < 10);
    return numbers;
  };
  CHECK(losses_of("parts", true) == losses_of("whole", false));
}

}  // namespace
}  // namespace dstrain::test
