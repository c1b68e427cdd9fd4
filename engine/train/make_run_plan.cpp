#include "engine/train/make_run_plan.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/checkpoint/base_weights.h"
#include "engine/plan/stage_partition.h"
#include "engine/runtime/fp8_scales.h"
#include "engine/train/objective/sequence_exchange.h"
#include "engine/train/plan_sampling.h"
#include "engine/train/plan_traffic.h"
#include "engine/train/trained_part.h"
#include "engine/train/wire_security.h"

namespace dstrain {
namespace {

UnitWalk joined(UnitWalk first, const UnitWalk& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

/// Whether several micro-batches go through a block before the next block.
bool goes_block_by_block(const Config& config) {
  return config.training.block_order == BlockOrder::kVertical &&
         config.batch.gradient_accumulation_steps.value_or(1) > 1;
}

/// This rank's chunks of the model, in the order of the schedule.
std::vector<ChunkPlan> plan_chunks(const Config& config,
                                   const LayerShape& shape,
                                   int pipeline_rank,
                                   Blueprint& blueprint) {
  const int stages = config.pipeline.stages * config.pipeline.virtual_stages;
  const std::vector<std::int64_t> partition =
      config.pipeline.partition.empty()
          ? balanced_partition(config.model, config.data.sequence_length, stages)
          : config.pipeline.partition;
  std::vector<ChunkPlan> chunks;
  std::int64_t block = 0;
  for (int index = 0; index < stages; ++index) {
    const std::int64_t end = block + partition.at(static_cast<std::size_t>(index));
    if (index % config.pipeline.stages == pipeline_rank) {
      chunks.push_back({TransformerStage::declare(
          shape, config.recompute,
          {.first_block = block, .end_block = end, .index = index, .stages = stages}, blueprint)});
    }
    block = end;
  }
  return chunks;
}

std::vector<AdaptedModule> coded_modules(const Config& config) {
  return config.quantization.enabled() ? linear_modules(config.model)
                                       : std::vector<AdaptedModule>{};
}

/// Whether checkpoints leave out what is not trained. Codes are never in them.
bool leaves_out_frozen(const Config& config) {
  const std::string& weights = config.initial_weights;
  return config.quantization.enabled() ||
         (config.adapters.enabled() && !weights.empty() && stay_in_place(weights));
}

/// Units that stay whole where parameters are cut: the smallest first, each below the one limit,
/// together below the other.
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

/// The walks of all chunks, and when each gathers; none where parameters are whole. Without a
/// pipeline a micro-batch's backward follows its forward, and the next micro-batch follows that.
std::vector<GatherPlan> plan_gathers(const Config& config,
                                     const Placement& placement,
                                     const ShardMap& shards,
                                     const std::vector<bool>& always_whole,
                                     std::vector<ChunkPlan>& chunks) {
  if (!placement.parameters.is_cut()) {
    return {};
  }
  std::vector<std::int64_t> sizes;
  for (int unit = 0; unit < shards.num_units(); ++unit) {
    sizes.push_back(always_whole[static_cast<std::size_t>(unit)] ? 0 : shards.padded_numel(unit));
  }
  GatherOptions options{.prefetch = config.zero.prefetch_bucket_size,
                        .max_live = config.zero.max_live_parameters,
                        .max_reuse_distance = config.zero.max_reuse_distance.value_or(0)};
  std::vector<GatherPlan> plans;
  const auto add = [&](const UnitWalk& walk) {
    plans.emplace_back(walk, sizes, options);
    return static_cast<int>(plans.size()) - 1;
  };
  for (ChunkPlan& chunk : chunks) {
    const TransformerStage& stage = chunk.stage;
    if (stage.extent().stages == 1) {
      options.repeats =
          config.batch.gradient_accumulation_steps.value_or(1) > 1 && !goes_block_by_block(config);
      chunk.forward_walk = add(joined(stage.forward_walk(), stage.backward_walk()));
      chunk.backward_walk = ChunkPlan::kGoesOn;
      options.repeats = false;
    } else {
      chunk.forward_walk = add(stage.forward_walk());
      chunk.backward_walk = add(stage.backward_walk());
    }
    chunk.evaluation_walk = add(stage.evaluation_walk());
  }
  return plans;
}

Schedule schedule_of(const Config& config, std::int64_t micro_batches) {
  const PipelineConfig& pipeline = config.pipeline;
  Schedule schedule = make_schedule(order_of(config), pipeline.stages, pipeline.virtual_stages,
                                    static_cast<int>(micro_batches));
  validate(schedule);
  return schedule;
}

/// The steps of a growing batch that are smaller than the full one.
std::vector<StepOrder> plan_smaller_steps(const Config& config,
                                          const BatchPlan& batch,
                                          const ActivationSlots& whole,
                                          int pipeline_rank) {
  std::vector<StepOrder> steps;
  if (!batch.ramp) {
    return steps;
  }
  const std::int64_t at_once = batch.micro_batch * batch.data_parallel;
  for (std::int64_t samples = batch.ramp->start; samples < batch.global_samples();
       samples += batch.ramp->increment) {
    const Schedule schedule = schedule_of(config, samples / at_once);
    const StepOrder& step = steps.emplace_back(
        StepOrder{.micro_batches = samples / at_once,
                  .actions = schedule.ranks[static_cast<std::size_t>(pipeline_rank)],
                  .slots = ActivationSlots(schedule, pipeline_rank)});
    for (int chunk = 0; chunk < config.pipeline.virtual_stages; ++chunk) {
      check(step.slots.num_slots(chunk) <= whole.num_slots(chunk),
            "{} micro-batches take {} slots of chunk {}, and {} take {}", step.micro_batches,
            step.slots.num_slots(chunk), chunk, batch.accumulation, whole.num_slots(chunk));
    }
  }
  return steps;
}

/// Whether fewer than all data-parallel ranks hold the parameters a second time.
bool keeps_second_copy(const Config& config, int gradient_ranks) {
  const int few = config.zero.secondary_ranks;
  return cuts_of(config.zero.stage).parameters && few > 1 && few < gradient_ranks;
}

/// Whether parameters, gradients and states are cut over fewer than all data-parallel ranks.
bool cuts_among_few(const Config& config, int gradient_ranks) {
  const int few = config.zero.shard_ranks;
  return cuts_of(config.zero.stage).parameters && few > 0 && few < gradient_ranks;
}

/// Whether gradients travel in 4 bits, first among fewer than all data-parallel ranks.
bool adds_among_few(const Config& config, int gradient_ranks) {
  const int few = config.zero.gradient_ranks.value_or(1);
  return cuts_of(config.zero.stage).parameters && config.zero.quantized_gradients && few > 1 &&
         few < gradient_ranks;
}

/// The number of neighbouring data-parallel ranks that work together; all, if no fewer do.
int neighbours_of(const Config& config, int gradient_ranks) {
  if (keeps_second_copy(config, gradient_ranks)) return config.zero.secondary_ranks;
  if (adds_among_few(config, gradient_ranks)) return *config.zero.gradient_ranks;
  return cuts_among_few(config, gradient_ranks) ? config.zero.shard_ranks : gradient_ranks;
}

WindowOptions windows_of(const OffloadConfig& offload) {
  const WindowOptions defaults;
  const std::int64_t most = offload.sub_group_size;
  return {
      .most_elements = most > 0 ? std::min(defaults.most_elements, most) : defaults.most_elements,
      .slots = static_cast<int>(offload.state_buffers)};
}

/// Elements whose gradients are sums over copies.
std::int64_t partial_gradients(const Blueprint& blueprint) {
  std::int64_t elements = 0;
  for (const UnitDecl& unit : blueprint.units()) {
    for (const ParamDecl& param : unit.params) {
      const bool summed =
          param.trained && (param.share.partial_gradient || param.tied_across_stages);
      elements += summed ? param.local_shape().numel() : 0;
    }
  }
  return elements;
}

/// One micro-batch through the pipeline, without backward.
std::vector<Action> plan_evaluation(const PipelineConfig& pipeline, int pipeline_rank) {
  Schedule schedule = make_schedule(PipelineOrder::kForward, pipeline.stages,
                                    pipeline.virtual_stages, /*micro_batches=*/1);
  validate(schedule);
  return std::move(schedule.ranks[static_cast<std::size_t>(pipeline_rank)]);
}

}  // namespace

PipelineOrder order_of(const Config& config) {
  if (goes_block_by_block(config)) {
    return PipelineOrder::kVertical;
  }
  switch (config.pipeline.schedule) {
    case ScheduleKind::k1F1B:
      return PipelineOrder::kOneForwardOneBackward;
    case ScheduleKind::kGpipe:
      return PipelineOrder::kGpipe;
    case ScheduleKind::kInterleaved:
      return PipelineOrder::kInterleaved;
  }
  return PipelineOrder::kOneForwardOneBackward;
}

Placement placement_of(const Config& config) {
  Placement placement = zero_placement(cuts_of(config.zero.stage));
  if (config.offload.states_ratio == 0.0) {
    return placement;
  }
  if (config.offload.states == OffloadTo::kDisk) {
    placement.states.space = Space::kDisk;
  } else if (config.offload.states == OffloadTo::kHost &&
             config.training.device == DeviceChoice::kCuda) {
    placement.states.space = Space::kHost;
  }
  if (!placement.parameters.is_cut()) {
    return placement;
  }
  if (config.offload.parameters == OffloadTo::kDisk) {
    placement.parameters.space = Space::kDisk;
  } else if (config.offload.parameters == OffloadTo::kHost &&
             config.training.device == DeviceChoice::kCuda) {
    placement.parameters.space = Space::kHost;
  }
  return placement;
}

Mesh mesh_of(const Config& config, int world_size) {
  const int tensor = config.tensor_parallel.size;
  const int pipeline = config.pipeline.stages;
  const int context = config.context_parallel.size;
  check(world_size % (tensor * pipeline * context) == 0, "{} ranks in {} stages of {} × {}",
        world_size, pipeline, context, tensor);
  const int gradients = world_size / (tensor * pipeline);
  const int neighbours = neighbours_of(config, gradients);
  check(gradients % neighbours == 0 && neighbours % context == 0,
        "{} ranks with the same parameters in groups of {}, with {} that share sequences",
        gradients, neighbours, context);
  const int heads = config.context_parallel.heads();
  const int expert_tensor = config.expert_parallel.tensor_ranks(tensor);
  check(gradients * tensor % (config.expert_parallel.size * expert_tensor) == 0,
        "{} ranks with other tokens hold experts in groups of {}, each cut in {}",
        gradients * tensor / expert_tensor, config.expert_parallel.size, expert_tensor);
  return Mesh({.pipeline = pipeline,
               .data_across = gradients / neighbours,
               .data_inside = neighbours / context,
               .context_ring = context / heads,
               .context_heads = heads,
               .tensor = tensor,
               .expert = config.expert_parallel.size,
               .expert_tensor = expert_tensor});
}

bool saves_in_background(const Config& config) {
  return config.checkpoint.async && config.checkpoint.interval > 0;
}

Schedule schedule_of(const Config& config) {
  check(config.batch.gradient_accumulation_steps.has_value(),
        "the config's batch sizes are not resolved");
  return schedule_of(config, *config.batch.gradient_accumulation_steps);
}

RunPlan make_run_plan(const Config& config, int world_size, int rank) {
  return make_run_plan(config, world_size, rank, schedule_of(config));
}

RunPlan make_run_plan(const Config& config, int world_size, int rank, const Schedule& schedule) {
  return make_run_plan(config, world_size, rank, schedule, placement_of(config));
}

RunPlan make_run_plan(const Config& config,
                      int world_size,
                      int rank,
                      const Schedule& schedule,
                      const Placement& primary) {
  const Mesh mesh = mesh_of(config, world_size);
  const int pipeline_rank = mesh.index(Axis::kPipeline, rank);
  Placement placement = primary;
  if (keeps_second_copy(config, mesh.degree(kGradientAxes))) {
    placement.secondary.cut = kNeighbourAxes;
  }
  if (cuts_among_few(config, mesh.degree(kGradientAxes))) {
    for (Place* const place : {&placement.parameters, &placement.gradients, &placement.states}) {
      place->cut = kNeighbourAxes;
    }
  }
  check(config.batch.micro_batch_size && config.batch.gradient_accumulation_steps,
        "the config's batch sizes are not resolved");
  const ContextShape context{.ring = mesh.degree(Axis::kContextRing),
                             .ring_rank = mesh.index(Axis::kContextRing, rank),
                             .heads = mesh.degree(Axis::kContextHeads),
                             .heads_rank = mesh.index(Axis::kContextHeads, rank),
                             .zigzag = config.context_parallel.order == ContextOrder::kZigzag};
  const BatchPlan batch{
      .micro_batch = *config.batch.micro_batch_size,
      .accumulation = *config.batch.gradient_accumulation_steps,
      .ramp = config.rampup_batch_size,
      .data_parallel = mesh.degree(kDataAxes),
      .sequence = config.data.sequence_length,
      .context = context,
      .sequence_ramp = config.curriculum.enabled ? std::optional(config.curriculum) : std::nullopt,
      .data_rank = mesh.index(kDataAxes, rank),
      .documents = document_rules(config.data)};

  const bool sequence_parallel =
      config.tensor_parallel.size > 1 && config.tensor_parallel.sequence_parallel;
  const GradientAveraging averaging(config.formats, mesh.degree(kGradientAxes));
  std::optional<Fp8Scales::Options> fp8;
  if (config.fp8.enabled) {
    fp8 = {.history = config.fp8.amax_history,
           .margin = static_cast<int>(config.fp8.margin),
           .gradient_factor = averaging.before_sum * mesh.degree(kGradientAxes)};
  }
  const DType compute = dtype_of(config.precision);
  const LayerShape shape{
      .model = config.model,
      .batch = batch.micro_batch,
      .sequence = batch.sequence,
      .loss_tile_tokens = config.training.loss_tile_tokens.value_or(0),
      .mlp_tile_tokens = config.training.mlp_tile_tokens.value_or(0),
      .compute = compute,
      .tensor = {.ranks = config.tensor_parallel.size,
                 .rank = mesh.index(Axis::kTensor, rank),
                 .sequence_parallel = sequence_parallel},
      .context = context,
      .experts = {.ranks = mesh.degree(Axis::kExpert),
                  .rank = mesh.index(Axis::kExpert, rank),
                  .capacity_factor = config.training.expert_capacity_factor.value_or(0.0),
                  .overlap = config.zero.overlap_comm,
                  .own_tokens = mesh.degree(Axis::kExpertTensor) < mesh.degree(Axis::kTensor)},
      .fp8 = config.fp8.enabled,
      .documents = config.data.document_attention,
      .dropout = config.dropout,
      .noise_alpha = static_cast<float>(config.training.noise_alpha),
      .seed = config.training.seed,
      .frozen = config.training.freeze,
      .adapters = adapters_of(config),
      .coded = coded_modules(config),
      .codes_in_8_bits = config.quantization.in_8_bits,
      .rates = config.rates,
      .weighs_targets = config.preferences.enabled() || config.policy.enabled(),
      .skips_targets = batch.documents.are_packed && !config.model.scores,
      .together = goes_block_by_block(config)};
  Blueprint blueprint;
  std::vector<ChunkPlan> chunks = plan_chunks(config, shape, pipeline_rank, blueprint);
  ActivationSlots slots(schedule, pipeline_rank);
  std::vector<StepOrder> smaller_steps = plan_smaller_steps(config, batch, slots, pipeline_rank);
  std::vector<int> slots_of_chunks;
  UnitWalk all_backward;  // in which units write their gradients
  for (int chunk = 0; chunk < static_cast<int>(chunks.size()); ++chunk) {
    slots_of_chunks.push_back(slots.num_slots(chunk));
    all_backward = joined(std::move(all_backward),
                          chunks[static_cast<std::size_t>(chunk)].stage.backward_walk());
  }
  blueprint.end_chunks();
  std::optional<SamplingPlan> sampling = plan_sampling(config, batch, mesh, shape, blueprint);
  std::vector<BufferRef> reference = plan_reference(config, compute, blueprint);
  const BufferRef norm_total =
      blueprint.add_buffer({"gradient_norm", {1}, DType::kF64, Lifetime::kScratch});
  BufferRef sequence_numbers;
  if (shape.weighs_targets && context.ranks() > 1) {
    sequence_numbers = blueprint.add_buffer(
        {"sequence_numbers",
         {SequenceExchange::kinds(shape.model), batch.micro_batch, batch.sequence},
         DType::kF32,
         Lifetime::kScratch});
  }
  const BufferRef bit_sums =
      blueprint.add_buffer({"bit_sums", {RunPlan::kBitSums * 4}, DType::kI32, Lifetime::kScratch});

  BufferRef fp8_amax;
  BufferRef fp8_scales;
  if (const auto tensors = static_cast<std::int64_t>(blueprint.scaled_tensors().size());
      tensors > 0) {
    fp8_amax = blueprint.add_buffer({"fp8_amax", {tensors}, DType::kF32, Lifetime::kConstant});
    fp8_scales = blueprint.add_buffer(
        {"fp8_scales", {tensors, Fp8Scales::kPlace}, DType::kF32, Lifetime::kConstant});
  }

  const ShardMap shards(blueprint, mesh, rank,
                        placement.states.is_cut() ? placement.states.cut : kEveryReplica);
  const FormatConfig& formats = config.formats;
  const Moments moments = moments_of(config.optimizer);
  const OptimizerScratch scratch = declare_optimizer(config.optimizer, shards, compute, blueprint);
  const DType gradient =
      formats.grad_accum.value_or(formats.bf16_master ? DType::kBF16 : DType::kF32);
  BufferRef replica_gradients;
  if (const std::int64_t elements = partial_gradients(blueprint); elements > 0) {
    replica_gradients =
        blueprint.add_buffer({"replica_gradients", {elements}, gradient, Lifetime::kScratch});
  }
  std::optional<CompressionLayout> compression;
  CompressionBuffers compression_buffers;
  if (config.gradient_compression.kind != CompressionKind::kNone) {
    compression.emplace(shards, config.gradient_compression, mesh.degree(kGradientAxes));
    compression_buffers = compression->declare(blueprint);
  }
  const bool has_neighbours = mesh.degree(Axis::kDataAcross) > 1;
  const bool codes_gradients = placement.parameters.is_cut() && config.zero.quantized_gradients;
  MemoryOptions memory{
      .compute_dtype = compute,
      .gradient_dtype = gradient,
      .wire_dtype = formats.communication.value_or(gradient),
      .moment_dtype = formats.bf16_optimizer_states ? DType::kBF16 : DType::kF32,
      .f32_master = !formats.bf16_master,
      .first_moment = moments.first,
      .second_moment = moments.second,
      .third_moment = *moments.third_name != '\0',
      .updates_alone = config.optimizer.kind == OptimizerKind::kZeroOneAdam,
      .signs = sends_signs(config.optimizer.kind)
                   ? std::optional(SignLayout(shards, mesh.degree(kGradientAxes),
                                              mesh.index(kGradientAxes, rank)))
                   : std::nullopt,
      .compression = compression,
      .placement = placement,
      .secondary_ranks = mesh.degree(kNeighbourAxes),
      .secondary_index = mesh.index(kNeighbourAxes, rank),
      .parameter_code = placement.parameters.is_cut() && config.zero.quantized_weights
                            ? std::optional(BlockCode{.bits = 8})
                            : std::nullopt,
      .gradient_code = codes_gradients ? std::optional(BlockCode{.bits = 4}) : std::nullopt,
      .overlap = config.zero.overlap_comm &&
                 (mesh.degree(kGradientAxes) > 1 || placement.parameters.space != Space::kDevice),
      .always_whole = {},
      .walk = std::move(all_backward),
      .parameter_reads = static_cast<int>(config.offload.parameter_buffers),
      .gathered_elements = 0,
      .slots = std::move(slots_of_chunks),
      .training = true,
      .share_apart = config.offload.states_ratio,
      .device_is_host =
          placement.states.space == Space::kDisk && config.training.device != DeviceChoice::kCuda,
      .windows = windows_of(config.offload)};
  memory.always_whole =
      placement.parameters.space == Space::kDevice
          ? always_whole_units(config.zero, shards)
          : std::vector<bool>(static_cast<std::size_t>(shards.num_units()), false);
  std::vector<GatherPlan> gathers =
      plan_gathers(config, placement, shards, memory.always_whole, chunks);
  for (const GatherPlan& walk : gathers) {
    memory.gathered_elements = std::max(memory.gathered_elements, walk.size());
  }
  MemoryPlan plan(blueprint, shards, memory);
  RunPlan run{.mesh = mesh,
              .rank = rank,
              .groups = plan_groups(
                  mesh,
                  {.tied_embeddings = shape.model.tied_embeddings,
                   .key_value_heads = config.model.num_key_value_heads,
                   .background_saves = saves_in_background(config),
                   .neighbours = has_neighbours,
                   .across_neighbours = has_neighbours && (shards.has_copies() || codes_gradients),
                   .separate_states = shards.has_copies()},
                  rank),
              .norm_group = group_of_norm(placement),
              .expert_norm_group = mesh.experts_are_apart()
                                       ? std::optional(group_of_expert_norm(placement))
                                       : std::nullopt,
              .model = config.model,
              .recompute = config.recompute,
              .sequence_parallel = sequence_parallel,
              .saves_frozen = !leaves_out_frozen(config),
              .fp8 = fp8,
              .attention = config.training.attention,
              .wire_security = wire_security(config),
              .seed = config.training.seed,
              .update = {.optimizer = config.optimizer,
                         .compression = config.gradient_compression,
                         .scheduler = config.scheduler,
                         .gradient_clipping = config.gradient_clipping,
                         .loss_scale = config.precision == Precision::kF16
                                           ? config.loss_scale
                                           : LossScaleConfig{.static_scale = 1.0},
                         .max_consecutive_skips = config.training.max_consecutive_skips.value_or(1),
                         .averaging = averaging},
              .batch = batch,
              .blueprint = std::move(blueprint),
              .shape = shape,
              .chunks = std::move(chunks),
              .sampling = std::move(sampling),
              .reference = std::move(reference),
              .scoring = plan_scoring(config, shape),
              .actions = schedule.ranks[static_cast<std::size_t>(pipeline_rank)],
              .evaluation_actions = plan_evaluation(config.pipeline, pipeline_rank),
              .slots = std::move(slots),
              .smaller_steps = std::move(smaller_steps),
              .norm_total = norm_total,
              .bit_sums = bit_sums,
              .sequence_numbers = sequence_numbers,
              .replica_gradients = replica_gradients,
              .compression = compression_buffers,
              .fp8_amax = fp8_amax,
              .fp8_scales = fp8_scales,
              .shards = shards,
              .gathers = std::move(gathers),
              .optimizer_scratch = scratch,
              .moments = moments,
              .memory = std::move(plan),
              .traffic = {},
              .other_traffic = {},
              .disk = {.folder = config.offload.states_path,
                       .key = "zero_optimization.offload_optimizer.nvme_path",
                       .block_bytes = config.offload.block_size,
                       .depth = config.offload.queue_depth}};
  run.traffic = plan_traffic(run, GradientTravel::kSummed);
  if (run.memory.options().signs || run.memory.options().compression) {
    run.other_traffic.emplace(GradientTravel::kCoded, plan_traffic(run, GradientTravel::kCoded));
  }
  if (run.memory.options().updates_alone) {
    run.other_traffic.emplace(GradientTravel::kStays, plan_traffic(run, GradientTravel::kStays));
  }
  return run;
}

}  // namespace dstrain
