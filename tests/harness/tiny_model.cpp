#include "tests/harness/tiny_model.h"

#include <cmath>
#include <cstring>
#include <filesystem>

#include "engine/checkpoint/placed_tensor.h"
#include "engine/comm/device_rendezvous.h"
#include "engine/train/engine.h"
#include "engine/train/make_run_plan.h"
#include "engine/train/rank_report.h"
#include "engine/train/training_state.h"
#include "kernels/core/caller_stream.h"
#include "kernels/math/activation.h"
#include "kernels/math/philox.h"
#include "tests/harness/recorded_traffic.h"
#include "tests/harness/sequence_objective.h"
#include "tests/harness/thread_world.h"

namespace dstrain::test {

ModelSpec tiny_model(Family family) {
  ModelSpec model;
  model.vocab_size = 67;
  model.hidden_size = 40;
  model.num_layers = 2;
  model.num_heads = 4;
  model.num_key_value_heads = 2;
  model.head_dim = 10;
  model.intermediate_size = 56;
  model.max_positions = 24;
  if (family == Family::kGpt2) {
    model.model_type = "gpt2";
    model.num_key_value_heads = 4;
    model.norm = NormKind::kLayerNorm;
    model.position = PositionKind::kLearned;
    model.activation = ActivationKind::kGeluTanh;
    model.gated_mlp = false;
    model.qkv_bias = true;
    model.attention_output_bias = true;
    model.mlp_bias = true;
    model.scaled_residual_init = true;
  }
  return model;
}

ModelSpec tiny_model_in_16s(Family family) {
  ModelSpec model = tiny_model(family);
  model.hidden_size = 48;
  model.head_dim = 16;
  model.num_heads = 4;
  model.intermediate_size = 96;
  return model;
}

Config tiny_config(const TinyOptions& options, int world_size) {
  Config config;
  config.model = options.model.value_or(tiny_model(options.family));
  config.model.tied_embeddings = options.tied;
  config.precision = options.precision;
  config.gradient_clipping = options.gradient_clipping;
  config.zero = options.zero;
  config.zero.stage = options.zero_stage;
  config.zero.overlap_comm = options.overlap_comm;
  config.recompute = options.recompute;
  config.formats = options.formats;
  config.fp8 = options.fp8;
  config.tensor_parallel = options.tensor_parallel;
  config.context_parallel = options.context_parallel;
  config.expert_parallel = options.expert_parallel;
  config.training.expert_capacity_factor = options.expert_capacity_factor;
  config.training.loss_tile_tokens = options.loss_tile_tokens;
  config.training.mlp_tile_tokens = options.mlp_tile_tokens;
  config.pipeline = options.pipeline;
  config.optimizer = options.optimizer;
  config.optimizer.learning_rate = options.learning_rate;
  config.gradient_compression = options.compression;
  const int data_ranks = world_size / (options.tensor_parallel.size * options.pipeline.stages *
                                       options.context_parallel.size);
  config.batch = {.train_batch_size = options.micro_batch * options.accumulation * data_ranks,
                  .micro_batch_size = options.micro_batch,
                  .gradient_accumulation_steps = options.accumulation};
  config.data.sequence_length = options.sequence;
  config.data.document_attention = options.documents.attention;
  config.data.mask_document_ends = options.documents.masks_borders;
  config.data.end_of_document = options.documents.end;
  config.dropout = options.dropout;
  config.training.steps = options.steps;
  config.training.seed = options.seed;
  config.training.freeze = options.freeze;
  config.rates = options.rates;
  config.adapters = options.adapters;
  config.training.noise_alpha = options.noise_alpha;
  if (options.weighs_targets) config.preferences.loss = PreferenceLoss::kOrpo;  // so it is planned
  config.training.cuda_graphs = options.cuda_graphs;
  config.training.block_order = options.block_order;
  config.training.device = options.gpu_store != nullptr ? DeviceChoice::kCuda : DeviceChoice::kCpu;
  config.offload = options.offload;
  config.offload.states_path = std::filesystem::current_path().string();
  return config;
}

void synthetic_sample(std::int64_t index,
                      std::int64_t vocab_size,
                      std::span<std::int32_t> inputs,
                      std::span<std::int32_t> targets) {
  const auto vocab = static_cast<std::uint32_t>(vocab_size);
  const auto word = [&](std::size_t position) {
    return philox(11, static_cast<std::uint64_t>(index), position);
  };
  std::uint32_t token = word(1000)[0] % vocab;
  for (std::size_t position = 0; position < inputs.size(); ++position) {
    inputs[position] = static_cast<std::int32_t>(token);
    const auto words = word(position);
    token = words[0] % 4 == 0 ? words[1] % vocab : (token * 5 + 3) % vocab;
    targets[position] = static_cast<std::int32_t>(token);
  }
}

std::vector<float> whole_master(Engine& engine, int unit) {
  const RunPlan& plan = engine.plan();
  Stream& compute = engine.context().compute;
  engine.settle();
  const Tensor mine = engine.arena().master(unit);
  std::vector<std::byte> bytes(static_cast<std::size_t>(mine.bytes()));
  const Site site = engine.context().site(RegionKind::kMaster, unit);
  site.device.copy_to_host(mine, bytes.data(), site.stream);
  site.stream.synchronize();
  std::vector<float> values(static_cast<std::size_t>(mine.numel()));
  convert_elements(bytes.data(), mine.dtype(), reinterpret_cast<std::byte*>(values.data()),
                   DType::kF32, mine.numel());
  if (plan.memory.placement().states.is_cut()) {
    std::vector<float> whole(static_cast<std::size_t>(plan.shards.padded_numel(unit)));
    engine.wait_for_communication();
    engine.slice_group(unit).all_gather(
        {values.data(), DType::kF32, mine.shape()},
        {whole.data(), DType::kF32, Shape{plan.shards.padded_numel(unit)}}, Purpose::kControl,
        compute);
    values = std::move(whole);
  }
  compute.synchronize();
  values.resize(static_cast<std::size_t>(plan.shards.numel(unit)));
  return values;
}

std::vector<HeldPiece> held_state(const Engine& engine) {
  std::vector<HeldPiece> held;
  for (const CheckpointTensor& tensor : state_tensors(engine, StateExtent::kEverything)) {
    HeldPiece part{tensor.state, tensor.piece, {}};
    part.values.resize(static_cast<std::size_t>(tensor.data.numel()));
    std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.data.bytes()));
    if (tensor.device != nullptr) {
      tensor.device->copy_to_host(tensor.data, bytes.data(), tensor.device->compute_stream());
      tensor.device->compute_stream().synchronize();
    } else {
      std::memcpy(bytes.data(), tensor.data.data(), bytes.size());
    }
    convert_elements(bytes.data(), tensor.data.dtype(),
                     reinterpret_cast<std::byte*>(part.values.data()), DType::kF32,
                     tensor.data.numel());
    held.push_back(std::move(part));
  }
  return held;
}

std::unique_ptr<Engine> make_tiny_engine(const Config& config,
                                         Rendezvous& rendezvous,
                                         Store* gpu_store,
                                         Space states,
                                         Space parameters) {
  Placement placement = zero_placement(cuts_of(config.zero.stage));
  placement.states.space = states;
  placement.parameters.space = parameters;
  RunPlan plan = make_run_plan(config, rendezvous.world_size(), rendezvous.world_rank(),
                               schedule_of(config), placement);
  if (gpu_store == nullptr) {
    return std::make_unique<Engine>(std::move(plan), rendezvous, make_cpu_backend(1), 1);
  }
  const auto gpus = static_cast<int>(find_cuda_devices().names.size());
  Backend backend =
      make_cuda_backend(gpus == 0 ? 0 : rendezvous.world_rank() % gpus,
                        {.graphs = config.training.cuda_graphs, .fp8 = config.fp8.enabled});
  auto by_device = make_device_rendezvous(rendezvous, *gpu_store, *backend.device);
  return std::make_unique<Engine>(std::move(plan), rendezvous, std::move(backend), 1, nullptr,
                                  std::move(by_device));
}

EngineStep train_tiny_step(Engine& engine,
                           const TinyOptions& options,
                           int step,
                           const std::function<void()>& before_update) {
  const std::int64_t vocab_size = options.model.value_or(tiny_model(options.family)).vocab_size;
  const auto length = static_cast<std::size_t>(engine.plan().batch.sequence);
  const LoadBatch load = [&](std::int64_t first_sample, std::span<std::int32_t> inputs,
                             std::span<std::int32_t> targets) {
    const std::int64_t of_step = engine.plan().batch.global_samples();
    const std::int64_t step_start = first_sample / of_step * of_step;
    const std::int64_t place = (first_sample - step_start) / options.micro_batch;
    const std::int64_t first =
        options.dealt.empty()
            ? first_sample
            : step_start + options.dealt.at(static_cast<std::size_t>(place)) * options.micro_batch;
    for (std::size_t row = 0; row * length < inputs.size(); ++row) {
      synthetic_sample(first + static_cast<std::int64_t>(row), vocab_size,
                       inputs.subspan(row * length, length), targets.subspan(row * length, length));
    }
  };
  return engine.train_step(load, step * engine.plan().batch.global_samples(),
                           {.learning_rate = options.learning_rate,
                            .update = step + 1,
                            .gradient_clipping = options.gradient_clipping,
                            .loss_scale = options.loss_scale,
                            .seed = 5},
                           before_update);
}

TinyRun train_tiny(Rendezvous& rendezvous, const TinyOptions& options) {
  const Config config = tiny_config(options, rendezvous.world_size());
  CollectiveLog traffic;
  RecordingRendezvous recorded(rendezvous, traffic);
  const std::unique_ptr<Engine> owner =
      make_tiny_engine(config, recorded, options.gpu_store, options.states, options.parameters);
  Engine& engine = *owner;
  const RunPlan& plan = engine.plan();
  if (options.weighs_targets) {
    engine.set_objective(std::make_unique<SequenceObjective>(plan));
  }
  TinyRun run;
  for (int step = 0; step < options.steps; ++step) {
    traffic.clear();
    const EngineStep result = train_tiny_step(engine, options, step);
    run.traffic = traffic.entries();
    CallerStream host;
    double loss_sum = 0.0;
    for (const RankReport& report :
         gather_reports({.loss_sum = result.local_loss_sum}, engine.world(), host)) {
      loss_sum += report.loss_sum;
    }
    // fp8 sees its first batch twice; a step without an update is shorter; and the traffic of
    // groups of GPUs is not recorded.
    const bool is_ordinary =
        (step > 0 || !options.fp8.enabled) && result.stats.updated && options.gpu_store == nullptr;
    if (run.unplanned_traffic.empty() && is_ordinary) {
      run.unplanned_traffic =
          difference(plan, traffic.entries(),
                     travel_of(plan.update.optimizer, plan.update.compression, step + 1));
    }
    run.losses.push_back(loss_sum / static_cast<double>(result.counted));
    run.grad_norms.push_back(result.stats.grad_norm);
    run.routing.push_back(result.routing);
  }
  run.num_units = plan.shards.num_units();
  for (int unit = 0; unit < run.num_units; ++unit) {
    if (options.gpu_store == nullptr) {
      const std::vector<float> master = whole_master(engine, unit);
      run.parameters.insert(run.parameters.end(), master.begin(), master.end());
    }
    run.unit_numel.push_back(plan.shards.numel(unit));
    run.unit_padded.push_back(plan.shards.padded_numel(unit));
  }
  engine.settle();
  run.held = held_state(engine);
  run.regions = plan.memory.regions();
  run.arena_bytes = engine.arena().bytes();
  run.plan_bytes = plan.memory.bytes();
  for (const Space space : {Space::kDevice, Space::kHost, Space::kDisk}) {
    run.arena_spaces.push_back(engine.arena().bytes(space));
    run.plan_spaces.push_back(plan.memory.bytes(space));
  }
  return run;
}

TinyRun train_tiny(const TinyOptions& options) {
  const auto world = make_local_rendezvous(1);
  return train_tiny(*world[0], options);
}

std::vector<TinyRun> train_ranks(int ranks, const TinyOptions& options) {
  return thread_world(ranks, [&](Rendezvous& rank) { return train_tiny(rank, options); });
}

double worst_relative(const std::vector<double>& a, const std::vector<double>& b) {
  check(a.size() == b.size(), "{} values against {}", a.size(), b.size());
  double worst = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(a[i] / b[i] - 1.0);
    worst = difference > worst || std::isnan(difference) ? difference : worst;
  }
  return worst;
}

}  // namespace dstrain::test
