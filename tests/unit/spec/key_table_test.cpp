// The key table itself: nothing honoured without effect, nothing listed twice, and every key of
// DeepSpeed's configuration known.
#include <map>
#include <set>

#include "engine/spec/config_keys.h"
#include "engine/spec/unknown_keys.h"
#include "tests/unit/spec/config_text.h"

namespace dstrain {
namespace {

const std::string kGpt2Model =
    R"(model={"model_type": "gpt2", "vocab_size": 256, "n_embd": 64, "n_layer": 2, "n_head": 4,
       "n_positions": 128})";
const std::string kDecay = R"(scheduler={"type": "WarmupDecayLR"})";
const std::string kCosine = R"(scheduler={"type": "WarmupCosineLR"})";

/// Another legal value for every honoured key, and what has to be set for it to apply.
struct Flip {
  std::string value;
  std::vector<std::string> before = {};
};

const std::map<std::string, Flip>& flips() {
  static const std::map<std::string, Flip> values = {
      {"train_batch_size", {"16"}},
      {"train_micro_batch_size_per_gpu", {"2"}},
      {"gradient_accumulation_steps", {"4"}},
      {"gradient_clipping", {"0.25"}},
      {"bf16.enabled", {"true"}},
      {"zero_optimization.overlap_comm", {"false"}},
      {"optimizer.params.lr", {"2e-3"}},
      {"optimizer.params.betas", {"[0.5, 0.6]"}},
      {"optimizer.params.eps", {"1e-6"}},
      {"optimizer.params.weight_decay", {"0.3"}},
      {"optimizer.params.bias_correction", {"false"}},
      {"scheduler.type", {"WarmupLR"}},
      {"scheduler.params.total_num_steps", {"77", {kCosine}}},
      {"scheduler.params.warmup_num_steps", {"3", {kCosine}}},
      {"scheduler.params.warmup_type", {"linear", {kCosine}}},
      {"scheduler.params.warmup_min_lr", {"1e-5", {kDecay}}},
      {"scheduler.params.warmup_max_lr", {"0.5", {kDecay}}},
      {"scheduler.params.warmup_min_ratio", {"0.1", {kCosine}}},
      {"scheduler.params.cos_min_ratio", {"0.2", {kCosine}}},
      {"steps_per_print", {"3"}},
      {"wall_clock_breakdown", {"true"}},
      {"model.model_type", {"mistral"}},
      {"model.vocab_size", {"300"}},
      {"model.hidden_size", {"128"}},
      {"model.intermediate_size", {"100"}},
      {"model.num_hidden_layers", {"3"}},
      {"model.num_attention_heads", {"2"}},
      {"model.num_key_value_heads", {"1"}},
      {"model.head_dim", {"8"}},
      {"model.max_position_embeddings", {"200"}},
      {"model.rms_norm_eps", {"1e-4"}},
      {"model.rope_theta", {"5e5"}},
      {"model.rope_scaling",
       {R"({"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
            "original_max_position_embeddings": 64})"}},
      {"model.attention_bias", {"true"}},
      {"model.mlp_bias", {"true"}},
      {"model.n_embd", {"128", {kGpt2Model}}},
      {"model.n_layer", {"3", {kGpt2Model}}},
      {"model.n_head", {"2", {kGpt2Model}}},
      {"model.n_positions", {"200", {kGpt2Model}}},
      {"model.n_inner", {"100", {kGpt2Model}}},
      {"model.layer_norm_epsilon", {"1e-4", {kGpt2Model}}},
      {"model.tie_word_embeddings", {"true"}},
      {"model.initializer_range", {"0.5"}},
      {"data.train", {"elsewhere"}},
      {"data.validation", {"elsewhere"}},
      {"data.sequence_length", {"32"}},
      {"training.steps", {"11"}},
      {"training.seed", {"2"}},
      {"training.eval_interval", {"5"}},
      {"training.eval_batches", {"3"}},
      {"training.device", {"cpu"}},
      {"training.output_dir", {"elsewhere"}},
      {"checkpoint.interval", {"5"}},
      {"checkpoint.keep", {"9"}},
      {"checkpoint.resume", {"never"}},
  };
  return values;
}

}  // namespace

TEST_CASE("flipping any honoured key changes the config", "[spec][keys]") {
  std::set<std::string> seen;
  for (const Key& key : all_keys()) {
    if (key.status != KeyStatus::kHonoured) continue;
    INFO(key.path);
    const auto flip = flips().find(key.path);
    REQUIRE(flip != flips().end());  // a new honoured key needs a line above
    seen.insert(key.path);
    std::vector<std::string> overrides = flip->second.before;
    const LoadedConfig before = load_tiny(overrides);
    overrides.push_back(key.path + "=" + flip->second.value);
    const LoadedConfig after = load_tiny(overrides);
    CHECK_FALSE(before.config == after.config);
    CHECK(origin_of(after, key.path) == "--set");
    CHECK(value_of_path(after, key.path) != value_of_path(before, key.path));
  }
  CHECK(seen.size() == flips().size());
}

TEST_CASE("every refused or ineffective key says why", "[spec][keys]") {
  for (const Key& key : all_keys()) {
    INFO(key.path);
    const bool needs_note = key.status == KeyStatus::kRefused || key.status == KeyStatus::kNoEffect;
    if (needs_note) CHECK_FALSE(key.note.empty());
    if (key.status == KeyStatus::kHonoured) {
      CHECK(key.set);
      CHECK(key.get);
    }
    if (key.applies) CHECK_FALSE(key.applies_to.empty());
  }
}

TEST_CASE("no path of the table means two things at once", "[spec][keys]") {
  for (const char* model_type : {"gpt2", "llama", "mistral", "qwen2"}) {
    for (const auto scheduler : {SchedulerKind::kConstant, SchedulerKind::kWarmup,
                                 SchedulerKind::kWarmupDecay, SchedulerKind::kWarmupCosine}) {
      Config config;
      config.model.model_type = model_type;
      config.scheduler.kind = scheduler;
      std::set<std::string> paths;
      for (const Key& key : all_keys()) {
        if (!key.applies_in(config)) continue;
        INFO(model_type << " " << key.path);
        CHECK(paths.insert(key.path).second);
        for (const std::string& alias : key.aliases) {
          CHECK(paths.insert(alias).second);
        }
      }
    }
  }
}

TEST_CASE("DeepSpeed's documented keys are all known", "[spec][keys]") {
  // Written from DeepSpeed 0.19's configuration, not from the table.
  const std::vector<std::string> documented = {
      "managed_gradient_accumulation",
      "zero_allow_untested_optimizer",
      "zero_force_ds_cpu_optimizer",
      "optimizer.legacy_fusion",
      "optimizer.params.torch_adam",
      "optimizer.params.adam_w_mode",
      "optimizer.params.amsgrad",
      "fp16.auto_cast",
      "fp16.loss_scale",
      "fp16.initial_scale_power",
      "fp16.loss_scale_window",
      "fp16.hysteresis",
      "fp16.consecutive_hysteresis",
      "fp16.min_loss_scale",
      "fp16.fp16_master_weights_and_grads",
      "bf16.immediate_grad_update",
      "bf16.check_grad_overflow",
      "bf16.bf16_master_weights_and_grads",
      "bf16.bf16_optimizer_states",
      "amp",
      "torch_autocast",
      "data_types.grad_accum_dtype",
      "data_types.param_dtype",
      "data_types.buffer_dtype",
      "communication_data_type",
      "seq_parallel_communication_data_type",
      "prescale_gradients",
      "gradient_predivide_factor",
      "gradient_allreduce_op",
      "sparse_gradients",
      "disable_allgather",
      "zero_optimization.contiguous_gradients",
      "zero_optimization.reduce_scatter",
      "zero_optimization.reduce_bucket_size",
      "zero_optimization.use_multi_rank_bucket_allreduce",
      "zero_optimization.allgather_partitions",
      "zero_optimization.allgather_bucket_size",
      "zero_optimization.load_from_fp32_weights",
      "zero_optimization.elastic_checkpoint",
      "zero_optimization.round_robin_gradients",
      "zero_optimization.ignore_unused_parameters",
      "zero_optimization.legacy_stage1",
      "zero_optimization.sub_group_size",
      "zero_optimization.stage3_max_live_parameters",
      "zero_optimization.max_live_parameters",
      "zero_optimization.stage3_max_reuse_distance",
      "zero_optimization.stage3_prefetch_bucket_size",
      "zero_optimization.stage3_param_persistence_threshold",
      "zero_optimization.stage3_model_persistence_threshold",
      "zero_optimization.stage3_gather_16bit_weights_on_model_save",
      "zero_optimization.stage3_gather_fp16_weights_on_model_save",
      "zero_optimization.stage3_module_granularity_threshold",
      "zero_optimization.stage3_use_all_reduce_for_fetch_params",
      "zero_optimization.stage3_allgather_sequential",
      "zero_optimization.zero_hpz_partition_size",
      "zero_optimization.zero_quantized_weights",
      "zero_optimization.zero_quantized_nontrainable_weights",
      "zero_optimization.zero_quantized_gradients",
      "zero_optimization.zeropp_loco_param",
      "zero_optimization.mics_shard_size",
      "zero_optimization.mics_hierarchical_params_gather",
      "zero_optimization.memory_efficient_linear",
      "zero_optimization.cpu_offload",
      "zero_optimization.cpu_offload_param",
      "zero_optimization.cpu_offload_use_pin_memory",
      "zero_optimization.offload_param.device",
      "zero_optimization.offload_param.nvme_path",
      "zero_optimization.offload_param.buffer_count",
      "zero_optimization.offload_param.buffer_size",
      "zero_optimization.offload_param.max_in_cpu",
      "zero_optimization.offload_param.pin_memory",
      "zero_optimization.offload_optimizer.device",
      "zero_optimization.offload_optimizer.nvme_path",
      "zero_optimization.offload_optimizer.pipeline_read",
      "zero_optimization.offload_optimizer.fast_init",
      "zero_optimization.offload_optimizer.ratio",
      "aio.block_size",
      "aio.queue_depth",
      "aio.overlap_events",
      "steps_per_print",
      "wall_clock_breakdown",
      "memory_breakdown",
      "dump_state",
      "dataloader_drop_last",
      "vocabulary_size",
      "graph_harvesting",
      "log_level",
      "use_data_before_expert_parallelism",
      "sequence_parallel_size",
      "activation_checkpointing.partition_activations",
      "activation_checkpointing.contiguous_memory_optimization",
      "activation_checkpointing.cpu_checkpointing",
      "activation_checkpointing.number_checkpoints",
      "activation_checkpointing.synchronize_checkpoint_boundary",
      "activation_checkpointing.profile",
      "flops_profiler.enabled",
      "flops_profiler.profile_step",
      "flops_profiler.module_depth",
      "flops_profiler.top_modules",
      "flops_profiler.detailed",
      "flops_profiler.output_file",
      "comms_logger.enabled",
      "comms_logger.verbose",
      "comms_logger.prof_all",
      "comms_logger.debug",
      "comms_logger.prof_ops",
      "tensorboard.enabled",
      "tensorboard.output_path",
      "tensorboard.job_name",
      "csv_monitor.enabled",
      "csv_monitor.output_path",
      "csv_monitor.job_name",
      "wandb",
      "comet",
      "timers.throughput.enabled",
      "timers.throughput.synchronized",
      "pipeline.stages",
      "pipeline.partition",
      "pipeline.seed_layers",
      "pipeline.activation_checkpoint_interval",
      "pipeline.pipe_partitioned",
      "pipeline.grad_partitioned",
      "tensor_parallel.autotp_size",
      "tensor_parallel.tp.tp_size",
      "tensor_parallel.tp.tp_grain_size",
      "tensor_parallel.tp_overlap_comm",
      "checkpoint.tag_validation",
      "checkpoint.load_universal",
      "checkpoint.use_node_local_storage",
      "checkpoint.parallel_write",
      "checkpoint.checkpoint_serialization",
      "checkpoint.writer",
      "nebula",
      "elasticity",
      "sparse_attention",
      "progressive_layer_drop",
      "curriculum_learning",
      "data_efficiency",
      "hybrid_engine",
      "compile",
      "autotuning",
      "eigenvalue",
      "compression_training",
      "weight_quantization"};
  std::set<std::string> known;
  for (const Key& key : all_keys()) {
    known.insert(key.path);
    known.insert(key.aliases.begin(), key.aliases.end());
  }
  for (const std::string& path : documented) {
    INFO(path);
    CHECK(known.contains(path));
  }
}

}  // namespace dstrain
