// Config: what the user wrote, typed. Plain structs; each field names its JSON key, unit, default.
// config_json.h reads it, config_resolve.h makes it complete; afterwards nothing is "auto" and it
// does not change.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "engine/config/adapter_config.h"
#include "engine/config/batch_ramp.h"
#include "engine/config/compression_config.h"
#include "engine/config/context_config.h"
#include "engine/config/data_config.h"
#include "engine/config/dropout_config.h"
#include "engine/config/expert_config.h"
#include "engine/config/model_spec.h"
#include "engine/config/monitor_config.h"
#include "engine/config/number_formats.h"
#include "engine/config/offload_config.h"
#include "engine/config/optimizer_config.h"
#include "engine/config/policy_config.h"
#include "engine/config/preference_config.h"
#include "engine/config/quantization_config.h"
#include "engine/config/recompute_config.h"
#include "engine/config/scheduler_config.h"
#include "engine/config/sequence_ramp.h"
#include "engine/config/tensor_patterns.h"
#include "engine/config/tensor_rates.h"
#include "engine/config/trace_config.h"
#include "kernels/attention_kernels.h"

namespace dstrain {

/// The batch identity: train = micro × accumulation × data-parallel size.
struct BatchConfig {
  std::optional<std::int64_t> train_batch_size;  ///< sequences of one optimizer step
  std::optional<std::int64_t> micro_batch_size;  ///< train_micro_batch_size_per_gpu
  std::optional<std::int64_t> gradient_accumulation_steps;

  bool operator==(const BatchConfig&) const = default;
};

enum class DeviceChoice : std::uint8_t { kAuto, kCpu, kCuda };

/// The order in which the micro-batches of a step go through the blocks, without a pipeline.
enum class BlockOrder : std::uint8_t {
  kHorizontal,  ///< one micro-batch through all blocks and back, then the next
  kVertical     ///< all of them through a block, then through the next
};

struct TrainingConfig {
  std::int64_t steps = 0;
  std::uint64_t seed = 1234;
  std::int64_t eval_interval = 0;  ///< steps between evaluations; 0: only at the end
  std::int64_t eval_batches = 16;  ///< of train_batch_size samples each, whatever the ranks
  /// Texts that the model continues at each evaluation, by at most so many tokens; empty: none.
  std::vector<std::string> eval_prompts{};
  std::int64_t eval_tokens = 64;
  DeviceChoice device = DeviceChoice::kAuto;
  /// Compute threads of a rank. Absent: its share of the cores that its host lets it use.
  std::optional<std::int64_t> threads;
  bool tf32 = false;  ///< products of fp32 matrices on a GPU in TF32
  AttentionKernels attention = AttentionKernels::kOwn;  ///< on a GPU
  BlockOrder block_order = BlockOrder::kHorizontal;
  /// The most tokens of a micro-batch whose logits, or whose feed-forward, a rank computes at a
  /// time. Absent: as many logits as fill LossHead::kMaxChunkBytes, and the feed-forward of all.
  std::optional<std::int64_t> loss_tile_tokens;
  std::optional<std::int64_t> mlp_tile_tokens;
  TensorPatterns freeze;  ///< "freeze": tensors that are not trained
  /// "neftune_noise_alpha": α of the noise that is added to embeddings in training (NEFTune, Jain
  /// et al. 2023), uniform within ±α/√(T·C). 0: none.
  double noise_alpha = 0.0;
  bool cuda_graphs = false;  ///< blocks' work on a GPU is recorded and enqueued as a whole
  /// An expert takes no more than so many times its even share of the tokens of a sequence. Absent:
  /// it takes all.
  std::optional<double> expert_capacity_factor;
  /// The file that algorithms of matrix products on GPUs are timed for and kept in. "auto":
  /// <output_dir>/matmul_algorithms.jsonl; "untimed": none, cuBLASLt's first proposals.
  std::string matmul_algorithms = "auto";
  std::string output_dir;
  /// Steps in a row whose gradients are not finite, after which the run stops. Absent: 40 with a
  /// dynamic loss scale, 5 otherwise.
  std::optional<std::int64_t> max_consecutive_skips;
  /// Steps between comparisons of the ranks' copies of parameters, masters and moments; 0: never.
  /// Absent: as often as takes a thousandth of the time, measured as the run goes.
  std::optional<std::int64_t> replica_check_interval;
  TraceConfig trace;

  bool operator==(const TrainingConfig&) const = default;
};

enum class ResumeMode : std::uint8_t { kAuto, kNever, kPath };

/// What happens to a run when a checkpoint cannot be written.
enum class SaveFailure : std::uint8_t { kStop, kContinue };

struct CheckpointConfig {
  std::int64_t interval = 0;  ///< steps; 0: only at the end
  std::int64_t keep = 2;      ///< newest ones that stay
  ResumeMode resume = ResumeMode::kAuto;
  std::string resume_path;  ///< for kPath: a folder that holds a manifest.json
  /// With kContinue a failed save is logged, and tried again an interval later. The last save of a
  /// run must always succeed.
  SaveFailure on_save_failure = SaveFailure::kStop;
  /// Checkpoints are written beside the steps that follow, from a copy in host memory. Off by
  /// default: the copy is as large as all that the rank saves.
  bool async = false;

  bool operator==(const CheckpointConfig&) const = default;
};

/// What protects bytes between ranks of two hosts (engine/comm/peer_meeting.h).
enum class NetworkSecurity : std::uint8_t {
  kAuthenticated,  ///< "authenticated": a change on the way ends the run
  kEncrypted,      ///< "encrypted": nor can they be read
  kTrusted         ///< "trusted": nothing, once the ranks have recognised each other
};

/// "zero_optimization". A unit is a block, the embedding or the head; sizes are elements.
struct ZeroConfig {
  int stage = 0;
  bool overlap_comm = true;  ///< units, and rows of experts, travel while others compute
  /// zero_hpz_partition_size: neighbouring data-parallel ranks that keep a second copy of the
  /// parameters among them, from which they gather again (ZeRO++'s hpZ). 1: none do.
  int secondary_ranks = 1;
  /// mics_shard_size: neighbouring data-parallel ranks over which stage 3 cuts, every other group
  /// of them having the same (MiCS). Below 1: it cuts over all.
  int shard_ranks = -1;
  /// zero_quantized_weights: parameters are gathered in 8 bits (ZeRO++'s qwZ).
  bool quantized_weights = false;
  /// zero_quantized_gradients: gradients travel in 4 bits, first among neighbours (qgZ).
  bool quantized_gradients = false;
  /// zero_qgz_partition_size: how many neighbouring data-parallel ranks those are. 1: all ranks at
  /// once. Absent: those of a host, until it is resolved.
  std::optional<int> gradient_ranks;
  /// stage3_prefetch_bucket_size: elements of units gathered ahead of their use, at least one unit;
  /// 0: none. Absent: the next unit.
  std::optional<std::int64_t> prefetch_bucket_size;
  /// stage3_param_persistence_threshold: units of fewer elements stay whole on every rank.
  std::int64_t param_persistence_threshold = 100'000;
  /// stage3_model_persistence_threshold: the most elements that all those have together.
  std::int64_t model_persistence_threshold = std::numeric_limits<std::int64_t>::max();
  /// stage3_max_live_parameters: gathered elements that prefetching and reuse may bring about.
  std::optional<std::int64_t> max_live_parameters;
  /// stage3_max_reuse_distance: a unit stays gathered if no more elements than these are used
  /// before its next use. Absent: 0, only what is used twice running.
  std::optional<std::int64_t> max_reuse_distance;

  bool operator==(const ZeroConfig&) const = default;
};

/// "tensor_parallel".
struct TensorParallelConfig {
  int size = 1;  ///< also autotp_size, tp.tp_size
  bool sequence_parallel = false;

  bool operator==(const TensorParallelConfig&) const = default;
};

/// The order in which a pipeline stage computes its micro-batches.
enum class ScheduleKind : std::uint8_t {
  k1F1B,        ///< "1f1b": backward as early as possible
  kGpipe,       ///< "gpipe": all forward, then all backward
  kInterleaved  ///< "interleaved": 1F1B over several model chunks of each stage
};

/// "pipeline". The model is cut into stages × virtual_stages chunks; chunk i is on stage
/// i mod stages.
struct PipelineConfig {
  int stages = 1;
  ScheduleKind schedule = ScheduleKind::k1F1B;
  int virtual_stages = 1;  ///< model chunks of a stage
  /// Blocks of each chunk, in model order. Empty: balanced by cost.
  std::vector<std::int64_t> partition;

  bool operator==(const PipelineConfig&) const = default;
};

enum class ElasticityVersion : std::uint8_t { k01, k02 };

/// "elasticity": one batch for many numbers of ranks (elasticity.h). The defaults are DeepSpeed's.
struct ElasticityConfig {
  bool enabled = false;
  std::int64_t max_train_batch_size = 2000;  ///< required where it is enabled, as the next one
  std::vector<std::int64_t> micro_batch_sizes = {2, 4, 6};
  std::int64_t min_gpus = 1;
  std::int64_t max_gpus = 10'000;
  std::int64_t num_gpus_per_node = 1;
  std::int64_t model_parallel_size = 1;  ///< tensor × pipeline; version 0.2
  bool prefer_larger_batch = true;
  bool ignore_non_elastic_batch_info = false;  ///< batch keys are not an error, but have no effect
  ElasticityVersion version = ElasticityVersion::k02;

  bool operator==(const ElasticityConfig&) const = default;
};

struct Config {
  BatchConfig batch;
  std::optional<BatchRamp> rampup_batch_size;  ///< [start, increment, samples]; absent: no ramp
  ElasticityConfig elasticity;
  double gradient_clipping = 1.0;  ///< global L2 norm; 0: off. DeepSpeed 0.19's default
  Precision precision = Precision::kF32;
  OpenPrecision open_precision;  ///< fp16.enabled or bf16.enabled "auto", before they are resolved
  LossScaleConfig loss_scale;    ///< only with kF16
  FormatConfig formats;
  Fp8Config fp8;
  ZeroConfig zero;
  OffloadConfig offload;
  PipelineConfig pipeline;
  TensorParallelConfig tensor_parallel;
  ContextParallelConfig context_parallel;
  ExpertParallelConfig expert_parallel;
  RecomputeConfig recompute;
  OptimizerConfig optimizer;
  TensorRates rates;  ///< of "optimizer.params"
  CompressionConfig gradient_compression;
  AdapterConfig adapters;  ///< "peft"
  QuantizationConfig quantization;
  PreferenceConfig preferences;
  PolicyConfig policy;  ///< "grpo"
  SchedulerConfig scheduler;
  SequenceRamp curriculum;  ///< curriculum_learning
  std::int64_t steps_per_print = 10;
  bool wall_clock_breakdown = false;
  MonitorConfig monitors;  ///< tensorboard, csv_monitor, wandb
  ModelSpec model;
  /// model.initial_weights: folder of the weights to start from, Hugging Face's or a checkpoint.
  /// Empty: from scratch.
  std::string initial_weights;
  DropoutConfig dropout;  ///< keys of "model", each family's own
  DataConfig data;
  TrainingConfig training;
  CheckpointConfig checkpoint;
  NetworkSecurity network_security = NetworkSecurity::kAuthenticated;  ///< network.security

  bool operator==(const Config&) const = default;
};

}  // namespace dstrain
