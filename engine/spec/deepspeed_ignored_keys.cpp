// The rest of DeepSpeed's configuration: what has no effect here, and what is refused because it
// would change what is trained or where it is kept.
#include <initializer_list>

#include "engine/spec/key_builders.h"

namespace dstrain {
namespace {

const char* const kZeroIsOff = "it tunes ZeRO, and ZeRO is off (stage 0)";
const char* const kNotYet = "is not in this version yet";

void add_all(std::vector<Key>& keys, std::initializer_list<Key> more) {
  keys.insert(keys.end(), more);
}

/// Settings of a block, all without effect for the same reason.
void add_block(std::vector<Key>& keys,
               const std::string& block,
               std::initializer_list<const char*> names,
               const std::string& note) {
  for (const char* name : names) {
    keys.push_back(no_effect(block + "." + name, KeyKind::kAny, note));
  }
}

/// Settings of a feature that is off: nothing to say about them.
void add_silent(std::vector<Key>& keys,
                const std::string& block,
                std::initializer_list<const char*> names) {
  for (const char* name : names) {
    keys.push_back(silent(block + "." + name));
  }
}

void add_precision(std::vector<Key>& keys) {
  keys.push_back(
      refused("fp16.enabled", {"false"},
              "fp16 is not in this version yet: use \"bf16\": {\"enabled\": true}, which "
              "needs no loss scaling, or neither for fp32"));
  add_silent(keys, "fp16",
             {"auto_cast", "loss_scale", "initial_scale_power", "loss_scale_window", "hysteresis",
              "consecutive_hysteresis", "min_loss_scale", "fp16_master_weights_and_grads"});
  const char* const kMaster = "master weights, gradients and optimizer state are fp32 here";
  add_all(keys,
          {also_called(no_effect("bf16.immediate_grad_update", KeyKind::kBool,
                                 "gradients are always added up at once, in fp32"),
                       {"bfloat16.immediate_grad_update"}),
           also_called(no_effect("bf16.check_grad_overflow", KeyKind::kBool,
                                 "a step whose gradients are not finite always stops the run"),
                       {"bfloat16.check_grad_overflow"}),
           also_called(refused("bf16.bf16_master_weights_and_grads", {"false"}, kMaster),
                       {"bfloat16.bf16_master_weights_and_grads"}),
           also_called(refused("bf16.bf16_optimizer_states", {"false"}, kMaster),
                       {"bfloat16.bf16_optimizer_states"}),
           refused_if_enabled("amp", "Apex is not supported: use \"bf16\""),
           refused_if_enabled("torch_autocast", "there is no torch here: use \"bf16\""),
           no_effect("data_types.grad_accum_dtype", KeyKind::kString,
                     "gradients are always accumulated in fp32"),
           no_effect("data_types.param_dtype", KeyKind::kString, "\"bf16\" decides it"),
           no_effect("data_types.buffer_dtype", KeyKind::kString, "\"bf16\" decides it")});
}

void add_communication(std::vector<Key>& keys) {
  const char* const kFp32 = "gradients are summed over the ranks in fp32, as a mean";
  for (const char* path :
       {"communication_data_type", "seq_parallel_communication_data_type", "prescale_gradients",
        "gradient_predivide_factor", "sparse_gradients", "disable_allgather"}) {
    keys.push_back(no_effect(path, KeyKind::kAny, kFp32));
  }
  keys.push_back(refused("gradient_allreduce_op", {"\"mean\""},
                         "only \"mean\" is supported: with \"sum\" the learning rate would mean "
                         "something else for every number of ranks"));
  keys.push_back(no_effect("managed_gradient_accumulation", KeyKind::kBool,
                           "dstrain always drives the accumulation itself"));
}

void add_zero(std::vector<Key>& keys) {
  const std::string zero = "zero_optimization";
  add_block(keys, zero,
            {"contiguous_gradients",
             "reduce_scatter",
             "reduce_bucket_size",
             "use_multi_rank_bucket_allreduce",
             "allgather_partitions",
             "allgather_bucket_size",
             "load_from_fp32_weights",
             "elastic_checkpoint",
             "round_robin_gradients",
             "ignore_unused_parameters",
             "sub_group_size",
             "zero_hpz_partition_size",
             "zero_quantized_weights",
             "zero_quantized_nontrainable_weights",
             "zero_quantized_gradients",
             "zeropp_loco_param",
             "mics_shard_size",
             "mics_hierarchical_params_gather",
             "memory_efficient_linear",
             "pipeline_loading_checkpoint",
             "override_module_apply",
             "log_trace_cache_warnings",
             "enable_sanity_checks",
             "leaf_module",
             "zenflow",
             "save_muon_momentum_buffer_in_memory"},
            kZeroIsOff);
  for (const char* name : {"max_live_parameters", "max_reuse_distance", "prefetch_bucket_size",
                           "param_persistence_threshold", "model_persistence_threshold",
                           "gather_16bit_weights_on_model_save", "module_granularity_threshold",
                           "use_all_reduce_for_fetch_params", "allgather_sequential"}) {
    Key key = no_effect(zero + ".stage3_" + name, KeyKind::kAny, kZeroIsOff);
    key.aliases = {zero + "." + name};
    if (std::string(name) == "gather_16bit_weights_on_model_save") {
      key.aliases.push_back(zero + ".stage3_gather_fp16_weights_on_model_save");
    }
    keys.push_back(key);
  }
  keys.push_back(refused(zero + ".legacy_stage1", {"false"}, "DeepSpeed has removed it as well"));
  for (const char* name : {"offload_param", "offload_optimizer"}) {
    keys.push_back(refused(zero + "." + name + ".device", {"\"none\""},
                           "offloading is not in this version yet: write \"none\" or leave out the "
                           "block"));
  }
  for (const char* name : {"cpu_offload", "cpu_offload_param"}) {
    keys.push_back(refused(zero + "." + name, {"false"}, "offloading is not in this version yet"));
  }
  keys.push_back(no_effect(zero + ".cpu_offload_use_pin_memory", KeyKind::kBool, kZeroIsOff));
  add_silent(keys, zero + ".offload_param",
             {"nvme_path", "buffer_count", "buffer_size", "max_in_cpu", "pin_memory"});
  add_silent(
      keys, zero + ".offload_optimizer",
      {"nvme_path", "buffer_count", "pin_memory", "pipeline_read", "pipeline_write", "fast_init",
       "ratio", "super_offload", "cpuadam_cores_perc", "fp32_optimizer_states"});
  add_silent(keys, "aio",
             {"block_size", "queue_depth", "intra_op_parallelism", "single_submit",
              "overlap_events", "use_gds", "thread_count"});
  for (const char* path : {"zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer"}) {
    keys.push_back(no_effect(path, KeyKind::kBool, "dstrain has one optimizer, and tests it"));
  }
}

void add_parallelism(std::vector<Key>& keys) {
  const char* const kNoPipeline = "pipeline parallelism is not in this version yet: write 1";
  const char* const kNoTensor = "tensor parallelism is not in this version yet: write 1";
  keys.push_back(refused("pipeline.stages", {"1", "\"auto\""}, kNoPipeline));
  keys.push_back(refused("pipeline.virtual_stages", {"1"}, kNoPipeline));
  add_block(keys, "pipeline",
            {"schedule", "partition", "seed_layers", "activation_checkpoint_interval",
             "pipe_partitioned", "grad_partitioned"},
            "there is one pipeline stage");
  keys.push_back(refused("tensor_parallel.size", {"1"}, kNoTensor));
  keys.push_back(refused("tensor_parallel.autotp_size", {"0", "1"}, kNoTensor));
  keys.push_back(refused("tensor_parallel.tp.tp_size", {"1"}, kNoTensor));
  add_block(keys, "tensor_parallel",
            {"sequence_parallel", "tp.tp_grain_size", "tp_overlap_comm", "preset_model",
             "partition_config", "dtype", "keep_module_on_host"},
            "the tensor-parallel size is 1");
  keys.push_back(refused("sequence_parallel_size", {"1"},
                         "sequence parallelism is not in this "
                         "version yet: write 1"));
  keys.push_back(refused("activation_checkpointing.granularity", {"\"none\""},
                         "recomputing activations is not in this version yet: write \"none\""));
  add_block(keys, "activation_checkpointing",
            {"partition_activations", "contiguous_memory_optimization", "cpu_checkpointing",
             "number_checkpoints", "synchronize_checkpoint_boundary", "profile"},
            "it configures DeepSpeed's Python function for recomputing activations");
}

void add_monitoring(std::vector<Key>& keys) {
  const char* const kUseMetrics = "is not in this version yet: metrics.jsonl has every figure";
  for (const char* name : {"tensorboard", "csv_monitor"}) {
    const std::string block = name;
    keys.push_back(refused(block + ".enabled", {"false"}, block + " " + kUseMetrics));
    add_silent(keys, block, {"output_path", "job_name"});
  }
  keys.push_back(refused_if_enabled("wandb", std::string("Weights & Biases ") + kUseMetrics));
  keys.push_back(refused_if_enabled("comet", std::string("Comet ") + kUseMetrics));
  const char* const kTimings = "metrics.jsonl has the timings of every step";
  add_block(keys, "flops_profiler",
            {"enabled", "recompute_fwd_factor", "profile_step", "module_depth", "top_modules",
             "detailed", "output_file"},
            kTimings);
  add_block(keys, "comms_logger", {"enabled", "verbose", "prof_all", "debug", "prof_ops"},
            kTimings);
  add_block(keys, "timers.throughput", {"enabled", "synchronized"}, kTimings);
  keys.push_back(no_effect("memory_breakdown", KeyKind::kBool, "metrics.jsonl has memory_bytes"));
  keys.push_back(no_effect("dump_state", KeyKind::kBool, "--print-config prints every value"));
  keys.push_back(no_effect("log_level", KeyKind::kAny, "it sets DeepSpeed's Python logger"));
}

void add_other(std::vector<Key>& keys) {
  keys.push_back(no_effect("dataloader_drop_last", KeyKind::kBool,
                           "every batch is whole: the data starts again where it ends"));
  keys.push_back(no_effect("vocabulary_size", KeyKind::kAny, "model.vocab_size decides it"));
  keys.push_back(no_effect("graph_harvesting", KeyKind::kBool, "it concerns CUDA graphs of torch"));
  keys.push_back(
      no_effect("use_data_before_expert_parallelism", KeyKind::kBool, "there are no experts"));
  add_block(keys, "checkpoint",
            {"tag_validation", "use_node_local_storage", "parallel_write", "writer",
             "checkpoint_serialization"},
            "checkpoints are dstrain's own: checked, and renamed into place when whole");
  keys.push_back(refused("checkpoint.load_universal", {"false"},
                         "reading DeepSpeed's checkpoints is not in this version yet"));
  for (const char* block :
       {"nebula", "elasticity", "progressive_layer_drop", "curriculum_learning", "data_efficiency",
        "hybrid_engine", "autotuning", "eigenvalue", "compression_training", "compile",
        "weight_quantization", "expert_parallel", "sparse_attention", "quantize_training"}) {
    keys.push_back(refused_if_enabled(block, std::string("\"") + block + "\" " + kNotYet));
  }
  for (const char* name :
       {"lr_range_test_min_lr", "lr_range_test_step_size", "lr_range_test_step_rate",
        "lr_range_test_staircase", "cycle_min_lr", "cycle_max_lr", "decay_lr_rate",
        "cycle_first_step_size", "cycle_second_step_size", "cycle_first_stair_count",
        "cycle_second_stair_count", "decay_step_size", "cycle_momentum", "cycle_min_mom",
        "cycle_max_mom", "decay_mom_rate"}) {
    keys.push_back(
        refused(std::string("scheduler.params.") + name, {},
                "belongs to LRRangeTest or OneCycle, which are not in this version yet"));
  }
}

}  // namespace

std::vector<Key> deepspeed_ignored_keys() {
  std::vector<Key> keys;
  add_precision(keys);
  add_communication(keys);
  add_zero(keys);
  add_parallelism(keys);
  add_monitoring(keys);
  add_other(keys);
  keys.push_back(silent("_notes"));  // config.resolved.json explains its defaults there
  return keys;
}

}  // namespace dstrain
