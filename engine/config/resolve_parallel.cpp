// Requirements of tensor, sequence and pipeline parallelism on the batch, and their costs.
#include <numeric>

#include <fmt/format.h>

#include "engine/config/json_text.h"
#include "engine/config/nearest_layout.h"
#include "engine/config/resolve_parts.h"
#include "engine/config/zero_stage.h"

namespace dstrain {
namespace {

constexpr const char* kSize = "tensor_parallel.size";
constexpr const char* kSequenceParallel = "tensor_parallel.sequence_parallel";
constexpr const char* kStages = "pipeline.stages";
constexpr const char* kSchedule = "pipeline.schedule";
constexpr const char* kVirtual = "pipeline.virtual_stages";
constexpr const char* kBlockOrder = "training.block_order";
constexpr const char* kGranularity = "activation_checkpointing.granularity";
constexpr const char* kPartition = "activation_checkpointing.partition_activations";
constexpr const char* kOnHost = "activation_checkpointing.cpu_checkpointing";

/// The advice at the end of errors that only a solved batch reveals; the nearest layout solves the
/// batch again.
std::string advice_on(const LoadedConfig& loaded, const BatchConfig& written, int world_size) {
  Config asked = loaded.config;
  asked.batch = written;
  return layout_advice(asked, world_size);
}

void resolve_sequence_parallel(LoadedConfig& loaded,
                               const BatchConfig& written,
                               int world_size,
                               Origins& origins) {
  TensorParallelConfig& tensor = loaded.config.tensor_parallel;
  if (!tensor.sequence_parallel) return;
  if (tensor.size == 1) {
    tensor.sequence_parallel = false;
    origins[kSequenceParallel] = "derived: tensor_parallel.size is 1";
    loaded.notices.push_back(fmt::format(
        "no effect: {}: {} is 1, so there is no rank to share with", kSequenceParallel, kSize));
    return;
  }
  const std::int64_t micro = loaded.config.batch.micro_batch_size.value();
  const std::int64_t context = loaded.config.context_parallel.size;
  const std::int64_t sequence = loaded.config.data.sequence_length / context;
  const std::int64_t size = tensor.size;
  // (micro · sequence) mod size without the product, which may not fit.
  const std::int64_t unit = size / std::gcd(sequence, size);
  if (micro % unit == 0) return;
  throw_config_error(
      origins[kSequenceParallel], kSequenceParallel,
      fmt::format(
          "a micro-batch's tokens, train_micro_batch_size_per_gpu {} × data.sequence_length "
          "{}{}, do not divide among {} {}: set the one to {}, or the other to a multiple of "
          "{}, or write false{}",
          micro, loaded.config.data.sequence_length,
          context == 1 ? "" : fmt::format(" / context_parallel.size {}", context), kSize, size,
          nearest_multiples(micro, unit), size / std::gcd(micro, size) * context,
          advice_on(loaded, written, world_size)));
}

void resolve_pipeline(LoadedConfig& loaded,
                      const BatchConfig& written,
                      int world_size,
                      Origins& origins) {
  const Config& config = loaded.config;
  const PipelineConfig& pipeline = config.pipeline;
  const std::int64_t stages = pipeline.stages;
  const std::int64_t micro_batches = config.batch.gradient_accumulation_steps.value();
  if (stages == 1) {
    if (pipeline.schedule == ScheduleKind::kGpipe) {
      loaded.notices.push_back(
          fmt::format("no effect: {}: there is one pipeline stage", kSchedule));
    }
    return;
  }
  if (pipeline.schedule == ScheduleKind::kInterleaved && micro_batches % stages != 0) {
    throw_config_error(
        origins[kSchedule], kSchedule,
        fmt::format(
            "\"interleaved\" takes micro-batches in rounds of {} {}, and "
            "gradient_accumulation_steps is {}: set that to {}, or write \"1f1b\" and leave "
            "{} out{}",
            kStages, stages, micro_batches, nearest_multiples(micro_batches, stages), kVirtual,
            advice_on(loaded, written, world_size)));
  }
  if (micro_batches < stages) {  // never with "interleaved", whose idle share is another
    const double idle =
        static_cast<double>(stages - 1) / static_cast<double>(micro_batches + stages - 1);
    loaded.notices.push_back(fmt::format(
        "{}: {} with only {} micro-batch{} a step (gradient_accumulation_steps): a stage is idle "
        "for {:.0f} % of it, (p-1)/(m+p-1)",
        kStages, stages, micro_batches, micro_batches == 1 ? "" : "es", 100.0 * idle));
  }
  if (cuts_of(config.zero.stage).gradients) {
    loaded.notices.push_back(fmt::format(
        "zero_optimization.stage: {} with {} {}, which DeepSpeed refuses: gradients are "
        "reduce-scattered after every micro-batch (gradient_accumulation_steps {}), whereas stage "
        "1 "
        "does it once a step",
        config.zero.stage, kStages, stages, micro_batches));
  }
}

void resolve_block_order(LoadedConfig& loaded, Origins& origins) {
  const Config& config = loaded.config;
  if (config.training.block_order != BlockOrder::kVertical) return;
  if (config.pipeline.stages > 1) {
    throw_config_error(
        origins[kBlockOrder], kBlockOrder,
        fmt::format("\"vertical\", with {} {}: it takes all micro-batches through a block before "
                    "the next, so that the next stage would wait for the whole step: expected "
                    "\"horizontal\", or one stage",
                    kStages, config.pipeline.stages));
  }
  if (config.batch.gradient_accumulation_steps.value() == 1) {
    loaded.notices.push_back(fmt::format(
        "no effect: {}: a step has one micro-batch (gradient_accumulation_steps)", kBlockOrder));
  }
}

/// Says where a wish for what blocks keep of their inputs has no effect, for `reason` or because no
/// block recomputes, and takes it back. Returns whether it has one.
bool apply_or_say(LoadedConfig& loaded,
                  Origins& origins,
                  const char* key,
                  bool RecomputeConfig::*wanted,
                  std::string reason) {
  bool& value = loaded.config.recompute.*wanted;
  if (!value) return false;
  if (loaded.config.recompute.granularity == RecomputeGranularity::kNone) {
    reason = fmt::format("{} is \"none\": no block recomputes", kGranularity);
  }
  if (reason.empty()) return true;
  value = false;
  origins[key] = "derived: " + reason;
  loaded.notices.push_back(fmt::format("no effect: {}: {}", key, reason));
  return false;
}

void resolve_kept_inputs(LoadedConfig& loaded, Origins& origins) {
  const Config& config = loaded.config;
  const std::int64_t size = config.tensor_parallel.size;
  std::string whole;
  if (size == 1) {
    whole = fmt::format("{} is 1, so there is no rank to share with", kSize);
  } else if (config.tensor_parallel.sequence_parallel) {
    whole = fmt::format("{} cuts what a block keeps already", kSequenceParallel);
  }
  if (apply_or_say(loaded, origins, kPartition, &RecomputeConfig::partitions_inputs, whole)) {
    if (config.model.hidden_size % size != 0) {
      throw_config_error(
          origins[kPartition], kPartition,
          fmt::format("true, and model.hidden_size {} does not divide among {} {}: expected false, "
                      "or a size that divides it",
                      config.model.hidden_size, kSize, size));
    }
  }
  const std::string here = config.training.device == DeviceChoice::kCuda
                               ? ""
                               : "the device is the host (training.device is not \"cuda\")";
  if (apply_or_say(loaded, origins, kOnHost, &RecomputeConfig::inputs_on_host, here)) {
    if (config.training.cuda_graphs) {
      throw_config_error(origins[kOnHost], kOnHost,
                         "true, with training.cuda_graphs, and a graph cannot hold copies that go "
                         "on beside its block: expected one of the two");
    }
  }
}

void check_graphs(LoadedConfig& loaded, Origins& origins) {
  const Config& config = loaded.config;
  if (!config.training.cuda_graphs) return;
  if (config.tensor_parallel.size > 1) {
    throw_config_error(
        origins["training.cuda_graphs"], "training.cuda_graphs",
        fmt::format("true, with tensor_parallel.size {}, whose ranks communicate within a "
                    "block, and a graph cannot hold communication: expected false, or one rank "
                    "for a block",
                    config.tensor_parallel.size));
  }
  if (config.context_parallel.size > 1) {
    throw_config_error(
        origins["training.cuda_graphs"], "training.cuda_graphs",
        fmt::format("true, with context_parallel.size {}, whose ranks communicate within a block, "
                    "and a graph cannot hold communication: expected false, or whole sequences",
                    config.context_parallel.size));
  }
  if (config.training.device != DeviceChoice::kCuda) {
    loaded.notices.emplace_back(
        "no effect: training.cuda_graphs: a CPU has none (training.device is not \"cuda\")");
  }
}

}  // namespace

std::string nearest_multiples(std::int64_t value, std::int64_t unit) {
  const std::int64_t low = value / unit * unit;
  return low == 0 ? fmt::format("{}", unit) : fmt::format("{} or {}", low, low + unit);
}

void resolve_parallel(LoadedConfig& loaded,
                      const BatchConfig& written,
                      int world_size,
                      Origins& origins) {
  resolve_sequence_parallel(loaded, written, world_size, origins);
  resolve_pipeline(loaded, written, world_size, origins);
  resolve_block_order(loaded, origins);
  resolve_kept_inputs(loaded, origins);
  check_graphs(loaded, origins);
}

}  // namespace dstrain
