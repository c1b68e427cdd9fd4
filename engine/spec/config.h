// Config: what the user wrote, typed. Plain structs; each field names its JSON key, unit, default.
// config_json.h reads it, config_resolve.h makes it complete; afterwards nothing is "auto" and it
// does not change.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/spec/model_spec.h"

namespace dstrain {

enum class Precision : std::uint8_t { kF32, kBF16 };

/// The batch identity: train = micro × accumulation × data-parallel size.
struct BatchConfig {
  std::optional<std::int64_t> train_batch_size;  ///< sequences of one optimizer step
  std::optional<std::int64_t> micro_batch_size;  ///< train_micro_batch_size_per_gpu
  std::optional<std::int64_t> gradient_accumulation_steps;

  bool operator==(const BatchConfig&) const = default;
};

enum class OptimizerKind : std::uint8_t { kAdamW };

/// "optimizer". "Adam" with adam_w_mode (DeepSpeed's default) is AdamW.
struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::kAdamW;
  double learning_rate = 1e-3;  ///< params.lr
  double beta1 = 0.9;           ///< params.betas[0]
  double beta2 = 0.999;
  double epsilon = 1e-8;      ///< params.eps
  double weight_decay = 0.0;  ///< params.weight_decay; on matrices only, not on norms and biases
  bool bias_correction = true;

  bool operator==(const OptimizerConfig&) const = default;
};

enum class SchedulerKind : std::uint8_t { kConstant, kWarmup, kWarmupDecay, kWarmupCosine };
enum class WarmupType : std::uint8_t { kLog, kLinear };

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
  std::int64_t eval_batches = 16;  ///< micro-batches per rank
  DeviceChoice device = DeviceChoice::kAuto;
  std::string output_dir;

  bool operator==(const TrainingConfig&) const = default;
};

enum class ResumeMode : std::uint8_t { kAuto, kNever, kPath };

struct CheckpointConfig {
  std::int64_t interval = 0;  ///< steps; 0: only at the end
  std::int64_t keep = 2;      ///< newest ones that stay
  ResumeMode resume = ResumeMode::kAuto;
  std::string resume_path;  ///< for kPath: a folder that holds a manifest.json

  bool operator==(const CheckpointConfig&) const = default;
};

/// "zero_optimization". Stage 0 for now; later stages have their own issue.
struct ZeroConfig {
  int stage = 0;
  bool overlap_comm = true;  ///< reduce a block's gradient while backward goes on

  bool operator==(const ZeroConfig&) const = default;
};

struct Config {
  BatchConfig batch;
  double gradient_clipping = 1.0;  ///< global L2 norm; 0: off. DeepSpeed 0.19's default
  Precision precision = Precision::kF32;
  ZeroConfig zero;
  OptimizerConfig optimizer;
  SchedulerConfig scheduler;
  std::int64_t steps_per_print = 10;
  bool wall_clock_breakdown = false;
  ModelSpec model;
  DataConfig data;
  TrainingConfig training;
  CheckpointConfig checkpoint;

  bool operator==(const Config&) const = default;
};

}  // namespace dstrain
