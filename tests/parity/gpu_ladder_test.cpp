// The ladder of equalities on a GPU, with ranks as threads that share it: every layout against one
// rank. Built twice: for the emulated GPU, whose streams
// make a wait that is missing visible, and for a real one, where there is one.
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/checkpoint/checkpoint_store.h"
#include "engine/train/training_state.h"
#include "tests/harness/resumable_run.h"
#include "tests/harness/thread_world.h"
#include "tests/harness/tiny_model.h"
#include "tests/parity/gpu_here.h"
#include "tests/parity/tiny_family.h"
#include "tests/parity/whole_state.h"

namespace dstrain::test {
namespace {

constexpr int kSteps = 2;
constexpr std::int64_t kMicroBatch = 2;

struct Layout {
  std::string name;
  int ranks = 1;
  TinyOptions options;
  int steps = kSteps;
};

std::vector<TinyRun> train_on_gpu(const Layout& layout) {
  const std::unique_ptr<Store> store = make_memory_store();
  TinyOptions options = layout.options;
  options.steps = layout.steps;
  options.micro_batch = kMicroBatch;
  options.gpu_store = store.get();
  return train_ranks(layout.ranks, options);
}

WholeState whole(const std::vector<TinyRun>& runs) {
  std::vector<std::vector<HeldPiece>> held;
  for (const TinyRun& run : runs) {
    held.push_back(run.held);
  }
  std::vector<std::string> faults;
  WholeState state = whole_state(held, faults);
  CHECK(faults.empty());
  return state;
}

std::vector<TinyRun> train_on_cpu(const Layout& layout) {
  TinyOptions options = layout.options;
  options.steps = layout.steps;
  options.micro_batch = kMicroBatch;
  return train_ranks(layout.ranks, options);
}

/// |a - b| / |b| of all states together, as Frobenius norms.
double relative_distance(const WholeState& a, const WholeState& b) {
  double difference = 0.0;
  double norm = 0.0;
  REQUIRE(a.size() == b.size());
  for (const auto& [name, expected] : b) {
    const std::vector<float>& got = a.at(name);
    REQUIRE(got.size() == expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      difference += std::pow(static_cast<double>(got[i]) - static_cast<double>(expected[i]), 2);
      norm += std::pow(static_cast<double>(expected[i]), 2);
    }
  }
  return std::sqrt(difference / norm);
}

/// The bytes of activations that a rank keeps on its device.
std::int64_t saved_bytes(const TinyRun& run) {
  for (const Region& region : run.regions) {
    if (region.kind == RegionKind::kSaved && region.space == Space::kDevice) return region.bytes;
  }
  return 0;
}

/// One rank that sees the batch of `layout`'s ranks.
Layout alone(const Layout& layout) {
  const TinyOptions& of = layout.options;
  const int copies =
      layout.ranks / (of.tensor_parallel.size * of.pipeline.stages * of.context_parallel.size);
  return {"alone",
          1,
          {.family = of.family,
           .tied = of.tied,
           .model = of.model,
           .sequence = of.sequence,
           .accumulation = of.accumulation * copies,
           .gradient_clipping = of.gradient_clipping,
           .optimizer = of.optimizer,
           .expert_capacity_factor = of.expert_capacity_factor,
           .dropout = of.dropout,
           .weighs_targets = of.weighs_targets}};
}

ModelSpec with_experts(std::int64_t experts) {
  ModelSpec model = *tiny_family("qwen3_moe").model;
  model.experts.count = experts;
  return model;
}

ModelSpec with_shared(std::int64_t experts) {
  ModelSpec model = *tiny_family("deepseek_v3").model;
  model.experts.count = experts;
  return model;
}

const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all{
      {"zero2 x2, muon",
       2,
       {.accumulation = 2, .zero_stage = 2, .optimizer = {.kind = OptimizerKind::kMuon}}},
      {"zero2 x2, states on the host",
       2,
       {.accumulation = 2, .zero_stage = 2, .states = Space::kHost}},
      {"zero2 x2, states on a disk",
       2,
       {.accumulation = 2, .zero_stage = 2, .states = Space::kDisk}},
      {"zero1 x2, half of the states on the host",
       2,
       {.accumulation = 2,
        .gradient_clipping = 0.5,
        .zero_stage = 1,
        .states = Space::kHost,
        .offload = {.states_ratio = 0.5}}},
      {"zero3 x4, a second copy among 2",
       4,
       {.accumulation = 2,
        .zero_stage = 3,
        .zero = {.secondary_ranks = 2, .param_persistence_threshold = 0}}},
      {"zero3 x4, cut among 2",
       4,
       {.accumulation = 2,
        .gradient_clipping = 0.5,
        .zero_stage = 3,
        .zero = {.shard_ranks = 2, .param_persistence_threshold = 0}}},
      {"zero3 x2, states and parameters on the host",
       2,
       {.accumulation = 2, .zero_stage = 3, .states = Space::kHost, .parameters = Space::kHost}},
      {"zero3 alone, states on a disk, parameters on the host",
       1,
       {.accumulation = 2, .zero_stage = 3, .states = Space::kDisk, .parameters = Space::kHost}},
      {"zero3 x2, states and parameters on a disk, block by block",
       2,
       {.accumulation = 2,
        .zero_stage = 3,
        .states = Space::kDisk,
        .parameters = Space::kDisk,
        .block_order = BlockOrder::kVertical}},
      {"zero3 x2", 2, {.accumulation = 2, .gradient_clipping = 0.5, .zero_stage = 3}},
      {"zero3 alone", 1, {.zero_stage = 3}},
      {"zero3 x2, block by block",
       2,
       {.accumulation = 3,
        .gradient_clipping = 0.5,
        .zero_stage = 3,
        .states = Space::kHost,
        .parameters = Space::kHost,
        .recompute = {.granularity = RecomputeGranularity::kFull},
        .block_order = BlockOrder::kVertical}},
      {"a ring of 2 in zigzag order, with dropout",
       2,
       {.family = Family::kGpt2,
        .sequence = 16,
        .context_parallel = {.size = 2},
        .dropout = {.attention = 0.3F}}},
      {"a ring of 2 in order, zero2 x2",
       4,
       {.sequence = 16,
        .zero_stage = 2,
        .context_parallel = {.size = 2, .order = ContextOrder::kContiguous}}},
      {"tp2", 2, {.tensor_parallel = {.size = 2}}},
      {"tp2, sequence parallel",
       2,
       {.family = Family::kGpt2, .tensor_parallel = {.size = 2, .sequence_parallel = true}}},
      {"sequences shared round a ring of 2", 2, {.sequence = 24, .context_parallel = {.size = 2}}},
      {"heads exchanged among 2, zero3",
       2,
       {.sequence = 24,
        .zero_stage = 3,
        .context_parallel = {.size = 2, .kind = ContextKind::kUlysses}}},
      {"rings of 2, heads exchanged among 2, zero1 x2",
       8,
       {.sequence = 24,
        .accumulation = 2,
        .gradient_clipping = 0.5,
        .zero_stage = 1,
        .context_parallel = {.size = 4, .kind = ContextKind::kUsp, .ulysses_size = 2}}},
      {"a mixture of experts, zero3 x2",
       2,
       {.model = tiny_family("mixtral").model, .accumulation = 2, .zero_stage = 3}},
      {"a mixture of experts, tp2",
       2,
       {.model = tiny_family("olmoe").model, .tensor_parallel = {.size = 2}}},
      {"experts over 2, zero1 x4",
       4,
       {.model = with_experts(8),
        .micro_batch = 2,
        .gradient_clipping = 0.5,
        .zero_stage = 1,
        .recompute = {.granularity = RecomputeGranularity::kFull},
        .expert_parallel = {.size = 2}}},
      {"experts over 2, shared sequences, zero3 x2",
       4,
       {.model = with_experts(8),
        .sequence = 20,
        .micro_batch = 2,
        .zero_stage = 3,
        .context_parallel = {.size = 2},
        .expert_parallel = {.size = 2}}},
      {"whole experts of each rank's tokens, tp2",
       2,
       {.model = with_experts(8),
        .sequence = 20,
        .micro_batch = 3,
        .zero_stage = 1,
        .tensor_parallel = {.size = 2, .sequence_parallel = true},
        .expert_parallel = {.tensor_size = 1}}},
      {"experts over 4 that take each rank's tokens, tp2, zero3 x2",
       4,
       {.model = with_experts(8),
        .sequence = 20,
        .micro_batch = 2,
        .zero_stage = 3,
        .recompute = {.granularity = RecomputeGranularity::kFull},
        .tensor_parallel = {.size = 2, .sequence_parallel = true},
        .expert_parallel = {.size = 4, .tensor_size = 1}}},
      {"experts over 2 that drop tokens",
       2,
       {.model = with_experts(8),
        .micro_batch = 2,
        .zero_stage = 2,
        .expert_parallel = {.size = 2},
        .expert_capacity_factor = 0.8}},
      {"experts over 2 with balancing biases, beside a shared feed-forward, zero3",
       2,
       {.model = with_shared(8),
        .micro_batch = 2,
        .zero_stage = 3,
        .expert_parallel = {.size = 2}}},
      {"experts over 2 in tiles, beside a shared feed-forward",
       2,
       {.model = with_shared(8),
        .micro_batch = 2,
        .expert_parallel = {.size = 2},
        .mlp_tile_tokens = 7}},
      {"pp2, tied", 2, {.tied = true, .accumulation = 3, .pipeline = {.stages = 2}}},
      {"tp2 pp2, zero1 x2",
       8,
       {.accumulation = 2,
        .gradient_clipping = 0.5,
        .zero_stage = 1,
        .tensor_parallel = {.size = 2},
        .pipeline = {.stages = 2}}},
      {"tp2, zero3 x2, recomputed from parts of inputs",
       4,
       {.accumulation = 2,
        .zero_stage = 3,
        .recompute = {.granularity = RecomputeGranularity::kFull, .partitions_inputs = true},
        .tensor_parallel = {.size = 2}}}};
  return all;
}

/// Sums over ranks round elsewhere than sums over micro-batches.
void check_follows(const std::vector<TinyRun>& runs, const std::vector<TinyRun>& reference) {
  CHECK(worst_relative(runs.front().losses, reference.front().losses) < 1e-5);
  CHECK(worst_relative(runs.front().grad_norms, reference.front().grad_norms) < 1e-4);
  CHECK(relative_distance(whole(runs), whole(reference)) < 1e-4);
  for (const TinyRun& run : runs) {
    CHECK(run.arena_bytes == run.plan_bytes);
  }
}

TEST_CASE("every layout on a GPU follows one rank on it", "[parity][gpu]") {
  if (!has_gpu()) {
    return;
  }
  for (const Layout& layout : layouts()) {
    INFO(layout.name);
    const std::vector<TinyRun> reference = train_on_gpu(alone(layout));
    const std::vector<TinyRun> runs = train_on_gpu(layout);
    check_follows(runs, reference);
  }
}

TEST_CASE("targets that are weighed on a GPU follow one rank on the CPU", "[parity][gpu]") {
  if (!has_gpu()) {
    return;
  }
  ModelSpec scoring = tiny_model(Family::kLlama);
  scoring.scores = true;
  ModelSpec valuing = tiny_model(Family::kLlama);
  valuing.values = true;
  const Layout weighed[] = {
      {"tp2, sequence parallel, zero3 x2",
       4,
       {.accumulation = 2,
        .zero_stage = 3,
        .tensor_parallel = {.size = 2, .sequence_parallel = true},
        .weighs_targets = true}},
      {"rings of 2, heads exchanged among 2, pp2, tied",
       8,
       {.tied = true,
        .sequence = 24,
        .accumulation = 2,
        .context_parallel = {.size = 4, .kind = ContextKind::kUsp, .ulysses_size = 2},
        .pipeline = {.stages = 2},
        .weighs_targets = true}},
      {"scores, tp2, sequence parallel, a ring of 2",
       4,
       {.model = scoring,
        .sequence = 24,
        .gradient_clipping = 0.5,
        .tensor_parallel = {.size = 2, .sequence_parallel = true},
        .context_parallel = {.size = 2},
        .weighs_targets = true}},
      {"values, zero3 x2, pp2, tp2, sequence parallel, a ring of 2",
       16,
       {.model = valuing,
        .sequence = 24,
        .accumulation = 2,
        .gradient_clipping = 0.5,
        .zero_stage = 3,
        .tensor_parallel = {.size = 2, .sequence_parallel = true},
        .context_parallel = {.size = 2},
        .pipeline = {.stages = 2},
        .weighs_targets = true}}};
  for (const Layout& layout : weighed) {
    INFO(layout.name);
    const std::vector<TinyRun> reference = train_on_cpu(alone(layout));
    const std::vector<TinyRun> runs = train_on_gpu(layout);
    check_follows(runs, reference);
  }
}

TEST_CASE("coded traffic on a GPU follows that on the CPU", "[parity][gpu]") {
  if (!has_gpu()) {
    return;
  }
  const Layout layout{"zero3 x4, coded, a second copy among 2",
                      4,
                      {.accumulation = 2,
                       .gradient_clipping = 0.5,
                       .zero_stage = 3,
                       .zero = {.secondary_ranks = 2,
                                .quantized_weights = true,
                                .quantized_gradients = true,
                                .param_persistence_threshold = 0}}};
  const std::vector<TinyRun> on_gpu = train_on_gpu(layout);
  const std::vector<TinyRun> on_cpu = train_on_cpu(layout);
  // A number between two codes may be rounded to either.
  CHECK(worst_relative(on_gpu.front().losses, on_cpu.front().losses) < 1e-3);
  CHECK(worst_relative(on_gpu.front().grad_norms, on_cpu.front().grad_norms) < 1e-2);
  for (const TinyRun& run : on_gpu) {
    CHECK(run.arena_bytes == run.plan_bytes);
  }
}

/// Codes choose between two numbers next to each other: a sign, or the larger one.
void check_coded_run(const Layout& layout) {
  const std::vector<TinyRun> on_gpu = train_on_gpu(layout);
  const std::vector<TinyRun> on_cpu = train_on_cpu(layout);
  CHECK(worst_relative(on_gpu.front().losses, on_cpu.front().losses) < 1e-3);
  CHECK(relative_distance(whole(on_gpu), whole(on_cpu)) < 2e-2);
  for (const TinyRun& run : on_gpu) {
    CHECK(run.arena_bytes == run.plan_bytes);
  }
}

TEST_CASE("signs on a GPU follow those on the CPU", "[parity][gpu][onebit]") {
  if (!has_gpu()) {
    return;
  }
  for (const OptimizerKind kind :
       {OptimizerKind::kOneBitAdam, OptimizerKind::kZeroOneAdam, OptimizerKind::kOneBitLamb}) {
    CAPTURE(static_cast<int>(kind));
    const Layout layout{"x2, signs",
                        2,
                        {.accumulation = 2,
                         .gradient_clipping = 0.5,
                         .optimizer = {.kind = kind,
                                       .beta2 = 0.95,
                                       .weight_decay = 0.1,
                                       .bias_correction = false,
                                       .freeze_step = 2,
                                       .var_update_scaler = 1,
                                       .local_step_scaler = 1,
                                       .local_step_clipper = 2,
                                       .coeff_beta = 0.5}},
                        6};
    check_coded_run(layout);
  }
}

TEST_CASE("compressed gradients on a GPU follow those on the CPU", "[parity][gpu][compression]") {
  if (!has_gpu()) {
    return;
  }
  for (const CompressionConfig& compression :
       {CompressionConfig{.kind = CompressionKind::kPowerSgd, .start_step = 1, .rank = 2},
        CompressionConfig{.kind = CompressionKind::kTopK, .start_step = 1, .density = 0.1}}) {
    for (const int stage : {0, 1}) {
      CAPTURE(static_cast<int>(compression.kind), stage);
      ModelSpec model = tiny_model(Family::kLlama);
      model.vocab_size = 256;  // tables of at least 4096 elements
      const Layout layout{"x2, compressed",
                          2,
                          {.model = model,
                           .accumulation = 2,
                           .gradient_clipping = 0.5,
                           .zero_stage = stage,
                           .compression = compression},
                          5};
      check_coded_run(layout);
    }
  }
}

TEST_CASE("a layout on a GPU gives the same bits twice", "[parity][gpu]") {
  if (!has_gpu()) {
    return;
  }
  const Layout layout = {"zero3 x2", 2, {.accumulation = 2, .zero_stage = 3}};
  const WholeState first = whole(train_on_gpu(layout));
  CHECK(differences(whole(train_on_gpu(layout)), first).empty());
}

TEST_CASE("inputs kept in parts give the bits of inputs kept whole on a GPU", "[parity][gpu]") {
  if (!has_gpu()) {
    return;
  }
  for (const RecomputeGranularity granularity :
       {RecomputeGranularity::kSelective, RecomputeGranularity::kFull}) {
    Layout layout{"tp2 pp2",
                  4,
                  {.precision = Precision::kBF16,
                   .accumulation = 3,
                   .recompute = {.granularity = granularity},
                   .tensor_parallel = {.size = 2},
                   .pipeline = {.stages = 2}}};
    const std::vector<TinyRun> whole_inputs = train_on_gpu(layout);
    layout.options.recompute.partitions_inputs = true;
    const std::vector<TinyRun> parts = train_on_gpu(layout);
    CHECK(parts.front().losses == whole_inputs.front().losses);
    CHECK(differences(whole(parts), whole(whole_inputs)).empty());
    for (const TinyRun& run : parts) {
      CHECK(run.arena_spaces == run.plan_spaces);
      CHECK(run.unplanned_traffic.empty());
    }
  }
}

TEST_CASE("inputs kept in the host's memory give the bits of inputs kept on a GPU",
          "[parity][gpu]") {
  if (!has_gpu()) {
    return;
  }
  ModelSpec deep = tiny_model(Family::kLlama);  // so that inputs come back, and in turns
  deep.num_layers = 5;
  ModelSpec beside = tiny_family("gpt_neox").model.value();
  beside.num_layers = 4;
  const std::vector<Layout> cases{
      {"alone", 1, {.model = deep, .accumulation = 2, .gradient_clipping = 0.5}},
      {"alone, a block at a time", 1, {.model = deep, .recompute = {.layers = 1}}},
      {"branches side by side", 1, {.model = beside, .accumulation = 2}},
      {"zero1 x2", 2, {.model = deep, .precision = Precision::kBF16, .zero_stage = 1}},
      {"zero2 x2",
       2,
       {.model = deep,
        .precision = Precision::kF16,
        .accumulation = 2,
        .gradient_clipping = 0.5,
        .zero_stage = 2,
        .loss_scale = 1024.0}},
      {"zero3 x2, parameters on the host",
       2,
       {.model = deep,
        .accumulation = 2,
        .zero_stage = 3,
        .states = Space::kHost,
        .parameters = Space::kHost}},
      {"pp2",
       2,
       {.model = deep,
        .precision = Precision::kBF16,
        .accumulation = 4,
        .pipeline = {.stages = 2}}},
      {"pp2, interleaved",
       2,
       {.model = deep,
        .accumulation = 4,
        .pipeline = {.stages = 2, .schedule = ScheduleKind::kInterleaved, .virtual_stages = 2}}},
      {"tp2, parts of inputs",
       2,
       {.model = deep,
        .precision = Precision::kBF16,
        .accumulation = 2,
        .recompute = {.partitions_inputs = true},
        .tensor_parallel = {.size = 2}}},
      {"tp2, sequence parallel",
       2,
       {.model = deep,
        .accumulation = 2,
        .tensor_parallel = {.size = 2, .sequence_parallel = true}}},
      {"block by block",
       1,
       {.model = deep, .accumulation = 3, .block_order = BlockOrder::kVertical}},
      {"block by block, branches side by side",
       2,
       {.model = beside, .accumulation = 2, .zero_stage = 1, .block_order = BlockOrder::kVertical}},
      {"block by block, tp2",
       2,
       {.model = deep,
        .accumulation = 3,
        .tensor_parallel = {.size = 2},
        .block_order = BlockOrder::kVertical}},
      {"block by block, tp2, in parts",
       2,
       {.model = deep,
        .precision = Precision::kBF16,
        .accumulation = 3,
        .recompute = {.partitions_inputs = true},
        .tensor_parallel = {.size = 2},
        .block_order = BlockOrder::kVertical}},
      {"block by block, tp2, sequence parallel",
       2,
       {.model = deep,
        .accumulation = 2,
        .tensor_parallel = {.size = 2, .sequence_parallel = true},
        .block_order = BlockOrder::kVertical}}};
  for (Layout layout : cases) {
    for (const RecomputeGranularity granularity :
         {RecomputeGranularity::kSelective, RecomputeGranularity::kFull}) {
      const bool is_small = layout.ranks == 1 || layout.options.recompute.partitions_inputs;
      if (granularity == RecomputeGranularity::kSelective && !is_small) continue;  // for its time
      INFO(layout.name << ", granularity " << static_cast<int>(granularity));
      layout.options.recompute.granularity = granularity;
      layout.options.recompute.inputs_on_host = false;
      const std::vector<TinyRun> here = train_on_gpu(layout);
      layout.options.recompute.inputs_on_host = true;
      const std::vector<TinyRun> there = train_on_gpu(layout);
      CHECK(differences(whole(there), whole(here)).empty());
      for (std::size_t rank = 0; rank < there.size(); ++rank) {
        CHECK(there[rank].losses == here[rank].losses);
        CHECK(there[rank].grad_norms == here[rank].grad_norms);
        CHECK(there[rank].arena_spaces == there[rank].plan_spaces);
        CHECK(there[rank].unplanned_traffic.empty());
        const auto host = static_cast<std::size_t>(Space::kHost);
        CHECK(saved_bytes(here[rank]) > saved_bytes(there[rank]));
        CHECK(there[rank].arena_spaces[host] - here[rank].arena_spaces[host] ==
              saved_bytes(here[rank]) - saved_bytes(there[rank]));
      }
    }
  }
}

TEST_CASE("blocks replayed from graphs give the bits of blocks enqueued", "[parity][gpu]") {
  if (!has_gpu()) {
    return;
  }
  // Three steps of three: gradients are overwritten once a step, and added to twice.
  const std::vector<Layout> cases{
      {"zero3 x2", 2, {.accumulation = 3, .zero_stage = 3}, 3},
      {"pp2, recomputed",
       2,
       {.accumulation = 3,
        .recompute = {.granularity = RecomputeGranularity::kFull},
        .pipeline = {.stages = 2}},
       3},
      {"block by block", 1, {.accumulation = 3, .block_order = BlockOrder::kVertical}, 3}};
  for (Layout layout : cases) {
    INFO(layout.name);
    const WholeState enqueued = whole(train_on_gpu(layout));
    layout.options.cuda_graphs = true;
    CHECK(differences(whole(train_on_gpu(layout)), enqueued).empty());
  }
}

TEST_CASE("8 bits on a GPU follow 8 bits on the CPU, in every ZeRO stage and from graphs",
          "[parity][gpu][fp8]") {
  if (!has_gpu() || !has_fp8()) {
    return;
  }
  for (const Family family : {Family::kGpt2, Family::kLlama}) {
    CAPTURE(family);
    Layout layout{"zero0 x2",
                  2,
                  {.family = family,
                   .model = tiny_model_in_16s(family),
                   .precision = Precision::kBF16,
                   .sequence = 24,
                   .micro_batch = kMicroBatch,
                   .accumulation = 2,
                   .fp8 = {.enabled = true, .amax_history = 2},
                   .steps = 3},
                  3};
    const std::vector<TinyRun> on_cpu = train_ranks(layout.ranks, layout.options);
    const std::vector<TinyRun> reference = train_on_gpu(layout);
    CHECK(worst_relative(reference.front().losses, on_cpu.front().losses) < 2e-3);
    CHECK(worst_relative(reference.front().grad_norms, on_cpu.front().grad_norms) < 0.06);
    layout.options.zero_stage = 3;
    layout.options.accumulation = 1;
    const WholeState enqueued = whole(train_on_gpu(layout));
    layout.options.cuda_graphs = true;
    CHECK(differences(whole(train_on_gpu(layout)), enqueued).empty());
    layout.options.zero_stage = 0;
    CHECK(differences(whole(train_on_gpu(layout)), enqueued).empty());
    layout.options.zero_stage = 3;
    layout.options.tensor_parallel = {.size = 2, .sequence_parallel = true};
    layout.options.accumulation = 2;
    layout.options.cuda_graphs = false;
    CHECK(worst_relative(train_on_gpu(layout).front().losses,
                         train_ranks(layout.ranks, layout.options).front().losses) < 2e-3);
  }
}

/// The state that one rank on a GPU gets from the newest checkpoint of a run.
std::vector<std::vector<float>> state_on_gpu(const RunFolder& folder,
                                             const std::string& output,
                                             const LoadedConfig& config) {
  const auto world = make_local_rendezvous(1);
  const std::unique_ptr<Store> store = make_memory_store();
  Config single = config.config;
  single.zero.stage = 0;
  const auto engine = make_tiny_engine(single, *world[0], store.get());
  const auto latest = CheckpointStore(folder.path() / output / "checkpoints").latest();
  REQUIRE(latest);
  CheckpointStore::load(*latest, state_tensors(*engine, StateExtent::kEverything));
  std::vector<std::vector<float>> values;
  for (HeldPiece& piece : held_state(*engine)) {
    values.push_back(std::move(piece.values));
  }
  return values;
}

TEST_CASE("checkpoints go from GPU to CPU and back, bit for bit, and a run continues from one",
          "[parity][gpu]") {
  if (!has_gpu()) {
    return;
  }
  const RunFolder folder;
  // One file for all runs: each would time algorithms again in a folder of its own, and might
  // choose others.
  const std::string algorithms = (folder.path() / "algorithms.jsonl").string();
  const auto config = [&](const char* output, int steps, const char* device) {
    return config_of(folder, output, steps, 2,
                     {{"training",
                       {{"device", device},
                        {"eval_interval", 2},
                        {"eval_batches", 1},
                        {"matmul_algorithms", algorithms}}},
                      {"checkpoint", {{"interval", 2}, {"async", true}}},
                      {"zero_optimization", {{"stage", 3}}}});
  };
  // Four steps on a GPU at once, and with a stop and another start in between.
  const LoadedConfig whole_run = config("whole", 4, "cuda");
  run(whole_run, 2);
  run(config("halves", 2, "cuda"), 2);
  run(config("halves", 4, "cuda"), 2);
  CHECK(metrics_of(folder, "halves") == metrics_of(folder, "whole"));
  const auto saved = state_of(folder, "whole", whole_run);  // read on the CPU
  CHECK(state_of(folder, "halves", whole_run) == saved);
  CHECK(state_on_gpu(folder, "whole", whole_run) == saved);

  // The CPU's checkpoint, read on a GPU; and the CPU going on where the GPU was.
  const LoadedConfig on_cpu = config("on_cpu", 2, "cpu");
  run(on_cpu, 2);
  CHECK(state_on_gpu(folder, "on_cpu", on_cpu) == state_of(folder, "on_cpu", on_cpu));
  const LoadedConfig goes_on = config("on_cpu", 4, "cuda");
  run(goes_on, 2);
  const double loss = metrics_of(folder, "on_cpu").back().at("loss");
  CHECK(loss == Approx(metrics_of(folder, "whole").back().at("loss").get<double>()).epsilon(1e-5));
}

}  // namespace
}  // namespace dstrain::test
