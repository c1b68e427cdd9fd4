// Config: what the user wrote, typed. Plain structs; each field names its JSON key, unit, default.
// config_json.h reads it, config_resolve.h makes it complete; afterwards nothing is "auto" and it
// does not change.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "engine/config/model_spec.h"
#include "engine/config/number_formats.h"
#include "kernels/attention_kernels.h"

namespace dstrain {

/// The batch identity: train = micro × accumulation × data-parallel size.
struct BatchConfig {
  std::optional<std::int64_t> train_batch_size;  ///< sequences of one optimizer step
  std::optional<std::int64_t> micro_batch_size;  ///< train_micro_batch_size_per_gpu
  std::optional<std::int64_t> gradient_accumulation_steps;

  bool operator==(const BatchConfig&) const = default;
};

enum class OptimizerKind : std::uint8_t {
  kAdamW,    ///< "AdamW", and "Adam" with adam_w_mode (DeepSpeed's default)
  kAdam,     ///< "Adam" with adam_w_mode false: the decay is added to the gradient
  kSgd,      ///< "SGD", with momentum and Nesterov
  kAdagrad,  ///< "Adagrad"
  kLion,     ///< "Lion"
  kLamb,     ///< "Lamb"
  kMuon      ///< "Muon": the blocks' matrices; everything else by AdamW
};

/// Which parameters weight_decay is for.
enum class DecayRule : std::uint8_t {
  kMatrices,  ///< "matrices": not norms and biases, as Hugging Face's Trainer has it
  kAll        ///< "all": as DeepSpeed and torch have it where nobody says which
};

/// "optimizer".
struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::kAdamW;
  double learning_rate = 1e-3;  ///< params.lr
  double beta1 = 0.9;           ///< params.betas[0]
  double beta2 = 0.999;
  double epsilon = 1e-8;                   ///< params.eps
  double weight_decay = 0.0;               ///< params.weight_decay
  DecayRule decay = DecayRule::kMatrices;  ///< params.decay
  bool bias_correction = true;
  double momentum = 0.0;          ///< SGD, Muon
  double dampening = 0.0;         ///< SGD
  bool nesterov = false;          ///< SGD, Muon
  double max_coeff = 10.0;        ///< LAMB: largest trust ratio
  double min_coeff = 0.01;        ///< LAMB: smallest
  bool eps_inside_sqrt = false;   ///< LAMB
  std::optional<double> muon_lr;  ///< Muon's matrices; absent: lr
  std::optional<double> adam_lr;  ///< Muon's other parameters; absent: lr

  bool operator==(const OptimizerConfig&) const = default;
};

enum class SchedulerKind : std::uint8_t {
  kConstant,
  kWarmup,
  kWarmupDecay,
  kWarmupCosine,
  kRangeTest,
  kOneCycle
};
enum class WarmupType : std::uint8_t { kLog, kLinear };

/// LRRangeTest's params (Smith 2017): the rate grows until training breaks.
struct RangeTestConfig {
  double min_lr = 1e-3;           ///< lr_range_test_min_lr
  std::int64_t step_size = 2000;  ///< lr_range_test_step_size, updates
  double step_rate = 1.0;         ///< lr_range_test_step_rate
  bool staircase = false;         ///< lr_range_test_staircase

  bool operator==(const RangeTestConfig&) const = default;
};

/// OneCycle's params (Smith & Topin 2017): up, down, then decay; beta1 goes the other way.
struct OneCycleConfig {
  double min_lr = 0.0;  ///< cycle_min_lr
  double max_lr = 0.0;  ///< cycle_max_lr
  double decay_lr_rate = 0.0;
  std::int64_t first_step_size = 2000;           ///< cycle_first_step_size, updates
  std::optional<std::int64_t> second_step_size;  ///< absent: as the first
  std::int64_t first_stair_count = 0;
  std::optional<std::int64_t> second_stair_count;  ///< absent: as the first
  std::int64_t decay_step_size = 0;
  bool cycle_momentum = true;
  double min_momentum = 0.8;         ///< cycle_min_mom
  double max_momentum = 0.9;         ///< cycle_max_mom
  double decay_momentum_rate = 0.0;  ///< decay_mom_rate

  bool operator==(const OneCycleConfig&) const = default;
};

/// "scheduler"; kConstant where there is none. Unresolved ("auto" or absent) values are empty.
struct SchedulerConfig {
  SchedulerKind kind = SchedulerKind::kConstant;
  WarmupType warmup_type = WarmupType::kLog;
  std::int64_t warmup_num_steps = 1000;
  std::optional<std::int64_t> total_num_steps;  ///< "auto": training.steps
  double warmup_min_lr = 0.0;
  std::optional<double>
      warmup_max_lr;              ///< WarmupLR: absent is the optimizer's; WarmupDecayLR: 0.001
  double warmup_min_ratio = 0.0;  ///< WarmupCosineLR
  double cos_min_ratio = 1e-4;
  RangeTestConfig range_test;
  OneCycleConfig one_cycle;

  bool operator==(const SchedulerConfig&) const = default;
};

struct DataSource {
  std::string prefix;   ///< of a .bin/.idx pair, or a nanoGPT / llm.c .bin file
  double weight = 1.0;  ///< relative share of the samples

  bool operator==(const DataSource&) const = default;
};

struct DataConfig {
  std::vector<DataSource> train;
  std::vector<DataSource> validation;  ///< may be empty: no evaluation
  std::int64_t sequence_length = 0;    ///< tokens of a sample

  bool operator==(const DataConfig&) const = default;
};

enum class DeviceChoice : std::uint8_t { kAuto, kCpu, kCuda };

struct TrainingConfig {
  std::int64_t steps = 0;
  std::uint64_t seed = 1234;
  std::int64_t eval_interval = 0;  ///< steps between evaluations; 0: only at the end
  std::int64_t eval_batches = 16;  ///< of train_batch_size samples each, whatever the ranks
  DeviceChoice device = DeviceChoice::kAuto;
  /// Compute threads of a rank. Absent: its share of the cores that its host lets it use.
  std::optional<std::int64_t> threads;
  bool tf32 = false;  ///< products of fp32 matrices on a GPU in TF32
  AttentionKernels attention = AttentionKernels::kOwn;  ///< on a GPU
  bool cuda_graphs = false;  ///< blocks' work on a GPU is recorded and enqueued as a whole
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
  /// kContinue: it is logged, and tried again an interval later. The last save of a run counts
  /// always.
  SaveFailure on_save_failure = SaveFailure::kStop;
  /// Written beside the steps that follow, from a copy in host memory. Off by default: the copy is
  /// as large as all that the rank saves.
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
  bool overlap_comm = true;  ///< reduce and gather a unit while others compute
  /// stage3_prefetch_bucket_size: elements of units gathered ahead of their use, at least one unit;
  /// 0: none. Absent: the next unit.
  std::optional<std::int64_t> prefetch_bucket_size;
  /// stage3_param_persistence_threshold: units of fewer elements stay whole on every rank.
  std::int64_t param_persistence_threshold = 100'000;
  /// stage3_model_persistence_threshold: all those together at most so many elements.
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

/// What backward computes again instead of keeping it since forward.
enum class RecomputeGranularity : std::uint8_t {
  kNone,
  kSelective,  ///< what takes one elementwise or row-wise pass: norms, activation functions
  kFull        ///< a whole block, from the residual stream that enters it
};

/// "activation_checkpointing".
struct RecomputeConfig {
  RecomputeGranularity granularity = RecomputeGranularity::kNone;
  std::optional<std::int64_t> layers;  ///< the model's first so many blocks; absent: all

  [[nodiscard]] RecomputeGranularity of_block(std::int64_t block) const {
    return !layers || block < *layers ? granularity : RecomputeGranularity::kNone;
  }
  bool operator==(const RecomputeConfig&) const = default;
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
  bool ignore_non_elastic_batch_info = false;  ///< batch keys are no error, but do not count
  ElasticityVersion version = ElasticityVersion::k02;

  bool operator==(const ElasticityConfig&) const = default;
};

struct Config {
  BatchConfig batch;
  ElasticityConfig elasticity;
  double gradient_clipping = 1.0;  ///< global L2 norm; 0: off. DeepSpeed 0.19's default
  Precision precision = Precision::kF32;
  OpenPrecision open_precision;  ///< fp16.enabled or bf16.enabled "auto", before they are resolved
  LossScaleConfig loss_scale;    ///< only with kF16
  FormatConfig formats;
  Fp8Config fp8;
  ZeroConfig zero;
  PipelineConfig pipeline;
  TensorParallelConfig tensor_parallel;
  RecomputeConfig recompute;
  OptimizerConfig optimizer;
  SchedulerConfig scheduler;
  std::int64_t steps_per_print = 10;
  bool wall_clock_breakdown = false;
  ModelSpec model;
  /// model.initial_weights: folder of the weights to start from, Hugging Face's or a checkpoint.
  /// Empty: from scratch.
  std::string initial_weights;
  DataConfig data;
  TrainingConfig training;
  CheckpointConfig checkpoint;
  NetworkSecurity network_security = NetworkSecurity::kAuthenticated;  ///< network.security

  bool operator==(const Config&) const = default;
};

}  // namespace dstrain
