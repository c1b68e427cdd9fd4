#include "engine/train/run_plan.h"

#include <algorithm>
#include <numeric>

namespace dstrain {
namespace {

/// Stage 3's units that stay whole: the smallest first, each below the one limit, together below
/// the other.
std::vector<bool> always_whole_units(const ZeroConfig& zero, const ShardMap& shards) {
  std::vector<bool> whole(static_cast<std::size_t>(shards.num_units()), false);
  std::vector<int> by_size(whole.size());
  std::iota(by_size.begin(), by_size.end(), 0);
  std::stable_sort(by_size.begin(), by_size.end(),
                   [&](int a, int b) { return shards.numel(a) < shards.numel(b); });
  std::int64_t together = 0;
  for (const int unit : by_size) {
    together += shards.numel(unit);
    if (shards.numel(unit) >= zero.param_persistence_threshold ||
        together > zero.model_persistence_threshold) {
      break;
    }
    whole[static_cast<std::size_t>(unit)] = true;
  }
  return whole;
}

GatherPlans plan_gathers(const Config& config,
                         const TransformerStage& stage,
                         const ShardMap& shards,
                         const std::vector<bool>& always_whole) {
  std::vector<std::int64_t> sizes;
  for (int unit = 0; unit < shards.num_units(); ++unit) {
    sizes.push_back(always_whole[static_cast<std::size_t>(unit)] ? 0 : shards.padded_numel(unit));
  }
  GatherOptions options{.prefetch = config.zero.prefetch_bucket_size,
                        .max_live = config.zero.max_live_parameters,
                        .max_reuse_distance = config.zero.max_reuse_distance.value_or(0),
                        .repeats = config.batch.gradient_accumulation_steps.value_or(1) > 1};
  GatherPlan training(stage.training_walk(), sizes, options);
  options.repeats = false;
  return {.training = std::move(training),
          .evaluation = GatherPlan(stage.evaluation_walk(), sizes, options)};
}

}  // namespace

RunPlan make_run_plan(const Config& config, int world_size, int rank) {
  const Topology topology(1, world_size, 1);
  const Coordinates here = topology.coordinates(rank);
  check(config.batch.micro_batch_size && config.batch.gradient_accumulation_steps,
        "the config's batch sizes are not resolved");
  const BatchPlan batch{.micro_batch = *config.batch.micro_batch_size,
                        .accumulation = *config.batch.gradient_accumulation_steps,
                        .data_parallel = topology.degree(Axis::kData),
                        .sequence = config.data.sequence_length,
                        .data_rank = here.data};

  const DType compute = dtype_of(config.precision);
  const LayerShape shape{.model = config.model,
                         .batch = batch.micro_batch,
                         .sequence = batch.sequence,
                         .compute = compute};
  Blueprint blueprint;
  TransformerStage stage = TransformerStage::declare(shape, config.recompute, blueprint);
  const BufferRef norm_total =
      blueprint.add_buffer({"gradient_norm", {1}, DType::kF64, Lifetime::kScratch});

  const ShardMap shards(blueprint, topology.degree(Axis::kData));
  const FormatConfig& formats = config.formats;
  const Moments moments = moments_of(config.optimizer);
  const OptimizerScratch scratch = declare_optimizer(config.optimizer, shards, compute, blueprint);
  const DType gradient =
      formats.grad_accum.value_or(formats.bf16_master ? DType::kBF16 : DType::kF32);
  MemoryOptions memory{.compute_dtype = compute,
                       .gradient_dtype = gradient,
                       .wire_dtype = formats.communication.value_or(gradient),
                       .moment_dtype = formats.bf16_optimizer_states ? DType::kBF16 : DType::kF32,
                       .f32_master = !formats.bf16_master,
                       .first_moment = moments.first,
                       .second_moment = moments.second,
                       .zero_stage = config.zero.stage,
                       .slice = here.data,
                       .overlap = config.zero.overlap_comm && batch.data_parallel > 1,
                       .always_whole = {},
                       .walk = stage.training_walk(),
                       .gathered_elements = 0,
                       .micro_batches_in_flight = 1,
                       .training = true};
  GatherPlans gathers;
  if (config.zero.stage == 3) {
    memory.always_whole = always_whole_units(config.zero, shards);
    gathers = plan_gathers(config, stage, shards, memory.always_whole);
    memory.gathered_elements = std::max(gathers.training.size(), gathers.evaluation.size());
  }
  MemoryPlan plan(blueprint, shards, memory);
  return {.topology = topology,
          .here = here,
          .batch = batch,
          .blueprint = std::move(blueprint),
          .stage = std::move(stage),
          .norm_total = norm_total,
          .shards = shards,
          .gathers = std::move(gathers),
          .optimizer_scratch = scratch,
          .moments = moments,
          .memory = std::move(plan)};
}

}  // namespace dstrain
