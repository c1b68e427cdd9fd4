// Completes a config for a number of ranks: how they divide into parallel groups, DeepSpeed's batch
// identity in all its cases, then the values that other blocks take from each other.
#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "engine/base/amount_text.h"
#include "engine/config/config_keys.h"
#include "engine/config/config_values.h"
#include "engine/config/json_text.h"
#include "engine/config/resolve_parts.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

constexpr const char* kTrain = "train_batch_size";
constexpr const char* kMicro = "train_micro_batch_size_per_gpu";
constexpr const char* kAccumulation = "gradient_accumulation_steps";

std::int64_t product(std::int64_t micro, std::int64_t accumulation, std::int64_t ranks) {
  std::int64_t result = 0;
  if (__builtin_mul_overflow(micro, accumulation, &result) ||
      __builtin_mul_overflow(result, ranks, &result)) {
    throw_config_error("", kTrain,
                       fmt::format("{} × {} × {} is too large", micro, accumulation, ranks));
  }
  return result;
}

std::string ranks_text(std::int64_t ranks) {
  return fmt::format("{} data-parallel rank{}", ranks, ranks == 1 ? "" : "s");
}

/// "96 (gradient_accumulation_steps 4) or 120 (… 5)": the multiples of `unit` around `value`.
std::string nearest_multiples(std::int64_t value, std::int64_t unit, const char* quotient_key) {
  const std::int64_t low = value / unit;
  std::string text = fmt::format("{} ({} {})", (low + 1) * unit, quotient_key, low + 1);
  if (low > 0) text = fmt::format("{} ({} {}) or ", low * unit, quotient_key, low) + text;
  return text;
}

/// The nearest multiple of `unit`, at least one.
std::int64_t nearest_multiple(std::int64_t value, std::int64_t unit) {
  return std::max(unit, (value + unit / 2) / unit * unit);
}

class BatchSolver {
 public:
  BatchSolver(LoadedConfig& loaded, std::int64_t ranks, Origins& origins)
      : batch_(loaded.config.batch), ranks_(ranks), origins_(origins) {}

  void solve() {
    const bool train = batch_.train_batch_size.has_value();
    if (!train && !batch_.micro_batch_size) set_micro_batch_to_default();
    const bool micro = batch_.micro_batch_size.has_value();
    const bool accumulation = batch_.gradient_accumulation_steps.has_value();
    if (train && micro && accumulation) {
      check_identity();
    } else if (train && micro) {
      derive(batch_.gradient_accumulation_steps, kAccumulation, *batch_.micro_batch_size, kMicro);
    } else if (train && accumulation) {
      derive(batch_.micro_batch_size, kMicro, *batch_.gradient_accumulation_steps, kAccumulation);
    } else if (train) {
      set_accumulation_to_one();
      derive(batch_.micro_batch_size, kMicro, 1, kAccumulation);
    } else {
      check(micro, "no batch size");
      if (!accumulation) set_accumulation_to_one();
      batch_.train_batch_size =
          product(*batch_.micro_batch_size, *batch_.gradient_accumulation_steps, ranks_);
      origins_[kTrain] =
          fmt::format("derived: {} × {} × {}", kMicro, kAccumulation, ranks_text(ranks_));
    }
  }

 private:
  void set_micro_batch_to_default() {
    batch_.micro_batch_size = kDefaultMicroBatch;
    origins_[kMicro] = kTrainerDefault;
  }
  void set_accumulation_to_one() {
    batch_.gradient_accumulation_steps = 1;
    origins_[kAccumulation] = "derived: 1 where only one batch size is given";
  }

  [[nodiscard]] std::string where(const char* key) const {
    const auto origin = origins_.find(key);
    return origin == origins_.end() ? "" : origin->second;
  }

  void check_identity() const {
    const std::int64_t train = *batch_.train_batch_size;
    const std::int64_t micro = *batch_.micro_batch_size;
    const std::int64_t accumulation = *batch_.gradient_accumulation_steps;
    const std::int64_t whole = product(micro, accumulation, ranks_);
    if (whole == train) return;
    std::string fixes = fmt::format("set {} to {}", kTrain, whole);
    const auto add_fix = [&](const char* key, std::int64_t unit) {
      if (train % unit == 0) fixes += fmt::format(", or {} to {}", key, train / unit);
    };
    add_fix(kAccumulation, micro * ranks_);
    add_fix(kMicro, accumulation * ranks_);
    const std::int64_t over_ranks = accumulation * ranks_;
    const ConfigEdit mend =
        train % (micro * ranks_) == 0 ? ConfigEdit{ConfigEdit::Kind::kSet, kAccumulation,
                                                   std::to_string(train / (micro * ranks_))}
        : train % over_ranks == 0
            ? ConfigEdit{ConfigEdit::Kind::kSet, kMicro, std::to_string(train / over_ranks)}
            : ConfigEdit{ConfigEdit::Kind::kSet, kTrain, std::to_string(whole)};
    throw_config_error(
        where(kTrain), kTrain,
        fmt::format("{} contradicts {} {} × {} {} × {} = {}: {}, or leave one of the "
                    "three out",
                    train, kMicro, micro, kAccumulation, accumulation, ranks_text(ranks_), whole,
                    fixes),
        {mend});
  }

  /// unknown = train / (known × ranks), which must come out even.
  void derive(std::optional<std::int64_t>& unknown,
              const char* unknown_key,
              std::int64_t known,
              const char* known_key) {
    const std::int64_t train = *batch_.train_batch_size;
    const std::int64_t unit = product(known, 1, ranks_);
    if (train % unit != 0) {
      throw_config_error(
          where(kTrain), kTrain,
          fmt::format("{} is not a multiple of {} {} × {} = {}: the nearest that are: {}", train,
                      known_key, known, ranks_text(ranks_), unit,
                      nearest_multiples(train, unit, unknown_key)),
          {{ConfigEdit::Kind::kSet, kTrain, std::to_string(nearest_multiple(train, unit))}});
    }
    unknown = train / unit;
    origins_[unknown_key] =
        fmt::format("derived: {} / ({} {} × {})", kTrain, known_key, known, ranks_text(ranks_));
  }

  BatchConfig& batch_;
  std::int64_t ranks_;
  Origins& origins_;
};

Origins origins_of(const LoadedConfig& loaded) {
  Origins origins;
  for (const ConfigValue& value : loaded.values) {
    origins[value.path] = value.origin;
  }
  return origins;
}

}  // namespace

void resolve_data(LoadedConfig& loaded) {
  Origins origins = origins_of(loaded);
  resolve_documents(loaded, origins);
  resolve_preferences(loaded, origins);
}

void resolve_config(LoadedConfig& loaded, int world_size, const MachineFacts& facts) {
  ConfigProblems problems;
  resolve_config(loaded, world_size, facts, problems);
  problems.throw_if_any(loaded.file);
}

void resolve_config(LoadedConfig& loaded,
                    int world_size,
                    const MachineFacts& facts,
                    ConfigProblems& problems) {
  check(world_size >= 1, "world_size {} < 1", world_size);
  Origins origins = origins_of(loaded);
  resolve_device(loaded, facts, origins);
  resolve_open_precision(loaded, facts, origins);
  const bool is_model_sane =
      problems.spoil("model") || problems.attempt([&] { check_model_size(loaded, origins); });
  if (!is_model_sane) return;
  if (!problems.spoil_any({"context_parallel", "sequence_parallel_size",
                           "hierarchical_context_parallel_sizes", "data.sequence_length",
                           "tensor_parallel"})) {
    problems.attempt([&] { resolve_context(loaded, facts, origins); });
  }
  const auto data_parallel = divide_ranks(loaded, world_size, origins, problems);
  const std::int64_t same_parameters =
      data_parallel.value_or(1) * loaded.config.context_parallel.size;
  const BatchConfig written = loaded.config.batch;
  const bool has_batch = data_parallel &&
                         !problems.spoil_any({"elasticity", kTrain, kMicro, kAccumulation}) &&
                         problems.attempt([&] {
                           resolve_elasticity(loaded, *data_parallel, origins);
                           BatchSolver(loaded, *data_parallel, origins).solve();
                           check_step_size(loaded, *data_parallel, origins);
                           if (!problems.spoil_any({"rampup_batch_size", "pipeline"})) {
                             resolve_rampup(loaded, *data_parallel, origins);
                           }
                         });
  if (has_batch && !problems.spoil_any({"tensor_parallel", "pipeline", "data.sequence_length"})) {
    problems.attempt([&] { resolve_parallel(loaded, written, world_size, origins); });
  }
  if (!problems.spoil_any(
          {"bf16", "fp16", "data_types", "communication_data_type", "optimizer.type"})) {
    problems.attempt([&] { resolve_precision(loaded, origins); });
  }
  if (has_batch && !problems.spoil_any({"fp8", "bf16", "fp16", "model", "data.sequence_length"})) {
    problems.attempt([&] { resolve_fp8(loaded, origins); });
  }
  if (!problems.spoil_any({"model", "peft", "preferences", "training.freeze",
                           "training.mlp_tile_tokens", "optimizer.type", "gradient_compression",
                           "zero_optimization"})) {
    problems.attempt([&] { resolve_adapters(loaded, origins); });
  }
  if (!problems.spoil_any({"model", "peft", "quantization_config", "bf16", "fp16", "fp8",
                           "zero_optimization", "tensor_parallel"})) {
    problems.attempt([&] { resolve_quantization(loaded, origins); });
  }
  if (!problems.spoil_any({"model", "training.freeze", "optimizer.type", "gradient_compression",
                           "zero_optimization"})) {
    problems.attempt([&] { resolve_freezing(loaded, origins); });
  }
  if (!problems.spoil_any({"model", "preferences", "zero_optimization", "tensor_parallel",
                           "pipeline", "expert_parallel", "data.sequence_length"})) {
    problems.attempt([&] { resolve_sampling(loaded, origins); });
  }
  if (has_batch &&
      !problems.spoil_any({"grpo", "ppo", "model", "data", "peft", "preferences", "fp8"})) {
    problems.attempt([&] { resolve_policy(loaded, origins); });
  }
  if (!problems.spoil_any({"model", "peft", "training.freeze", "optimizer.params.lr_scale"})) {
    problems.attempt([&] { resolve_rates(loaded, origins); });
  }
  if (!problems.spoil_any({"model", "fp8", "context_parallel", "training.cuda_graphs",
                           "expert_parallel", "expert_tensor_parallel_size", "tensor_parallel",
                           "zero_optimization", "optimizer.type", "gradient_compression"})) {
    problems.attempt([&] {
      resolve_experts(loaded, data_parallel ? std::optional(same_parameters) : std::nullopt,
                      origins);
    });
  }
  if (has_batch && !problems.spoil_any({"curriculum_learning", "data.sequence_length",
                                        "tensor_parallel", "fp8", "training.cuda_graphs"})) {
    problems.attempt([&] { resolve_curriculum(loaded, origins); });
  }
  if (!problems.spoil("data")) {
    problems.attempt([&] { resolve_documents(loaded, origins); });
  }
  if (!problems.spoil_any({"data", "preferences", "model", "peft", "fp8"})) {
    problems.attempt([&] { resolve_preferences(loaded, origins); });
  }
  if (!problems.spoil("optimizer")) {
    problems.attempt([&] { resolve_optimizer(loaded, origins); });
  }
  if (data_parallel && !problems.spoil("zero_optimization")) {
    problems.attempt([&] { resolve_second_copy(loaded, same_parameters, origins); });
    problems.attempt([&] { resolve_shard_groups(loaded, same_parameters, origins); });
    problems.attempt([&] { resolve_quantized_gradients(loaded, same_parameters, facts, origins); });
  }
  if (!problems.spoil_any({"optimizer.type", "zero_optimization", "aio", "checkpoint.async"})) {
    problems.attempt([&] { resolve_offload(loaded, origins); });
  }
  if (data_parallel &&
      !problems.spoil_any({"gradient_compression", "zero_optimization", "optimizer.type", "bf16",
                           "data_types", "training.steps"})) {
    problems.attempt([&] { resolve_compression(loaded, same_parameters, origins); });
  }
  if (!problems.spoil_any({"scheduler", "optimizer", "training.steps"})) {
    problems.attempt([&] { resolve_scheduler(loaded, origins); });
  }
  if (!problems.empty()) return;
  const bool is_open = !written.train_batch_size && !written.micro_batch_size;
  if (is_open && !loaded.config.elasticity.enabled) {
    const BatchConfig& batch = loaded.config.batch;
    loaded.notices.push_back(
        fmt::format("{}: {}, {}, since the config says neither it nor {}, which is {} with {} {}",
                    kMicro, *batch.micro_batch_size, origins[kMicro], kTrain,
                    *batch.train_batch_size, kAccumulation, *batch.gradient_accumulation_steps));
  }
  if (origins["gradient_clipping"].find("DeepSpeed") != std::string::npos) {
    loaded.notices.push_back(
        fmt::format("gradient_clipping: {}, DeepSpeed 0.19's default (0, off, in older releases)",
                    loaded.config.gradient_clipping));
  }
  // Only a warning: a run that restarts on fewer ranks still has to go on.
  const std::vector<NumberSpan>& traced = loaded.config.training.trace.ranks;
  if (!traced.empty() && loaded.config.training.trace.steps.empty()) {
    loaded.warnings.push_back(fmt::format(
        "training.trace.ranks is \"{}\", and nothing is traced: training.trace.steps says no steps",
        to_text(traced)));
  } else if (!traced.empty() && traced.back().last >= world_size) {
    loaded.warnings.push_back(fmt::format(
        "training.trace.ranks is \"{}\", and the {} are numbered from 0: those that are not there "
        "are left out",
        to_text(traced), counted(world_size, "rank")));
  }
  loaded.values = list_values(loaded.config, origins);
}

}  // namespace dstrain
