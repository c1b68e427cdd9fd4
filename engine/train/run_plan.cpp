#include "engine/train/run_plan.h"

namespace dstrain {

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

  const DType compute = config.precision == Precision::kBF16 ? DType::kBF16 : DType::kF32;
  const LayerShape shape{.model = config.model,
                         .batch = batch.micro_batch,
                         .sequence = batch.sequence,
                         .compute = compute};
  Blueprint blueprint;
  TransformerStage stage = TransformerStage::declare(shape, blueprint);
  const BufferRef norm_total =
      blueprint.add_buffer({"gradient_norm", {1}, DType::kF64, Lifetime::kScratch});

  const ShardMap shards(blueprint, topology.degree(Axis::kData));
  MemoryPlan memory(blueprint, shards,
                    {.compute_dtype = compute, .micro_batches_in_flight = 1, .training = true});
  return {.topology = topology,
          .here = here,
          .batch = batch,
          .blueprint = std::move(blueprint),
          .stage = std::move(stage),
          .norm_total = norm_total,
          .shards = shards,
          .memory = std::move(memory)};
}

}  // namespace dstrain
