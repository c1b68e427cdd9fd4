// How ranks are divided among pipeline stages, tensor-parallel groups and data parallelism, and
// what each asks of the model, of the batch and of the other blocks.
#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

#include <fmt/format.h>

#include "engine/spec/json_text.h"
#include "engine/spec/resolve_parts.h"

namespace dstrain {
namespace {

constexpr const char* kSize = "tensor_parallel.size";
constexpr const char* kSequenceParallel = "tensor_parallel.sequence_parallel";
constexpr const char* kStages = "pipeline.stages";
constexpr const char* kSchedule = "pipeline.schedule";
constexpr const char* kVirtual = "pipeline.virtual_stages";
constexpr const char* kPartition = "pipeline.partition";

/// "2 or 8": the nearest to `value` on either side, in [1, most], that are right; "" if none is.
std::string nearest(std::int64_t value,
                    std::int64_t most,
                    const std::function<bool(std::int64_t)>& is_right) {
  std::int64_t low = std::min(value - 1, most);
  while (low >= 1 && !is_right(low)) {
    --low;
  }
  std::int64_t high = value + 1;
  while (high <= most && !is_right(high)) {
    ++high;
  }
  std::string text;
  if (low >= 1) text = fmt::format("{}", low);
  if (high <= most) text += fmt::format("{}{}", text.empty() ? "" : " or ", high);
  return text;
}

/// As nearest, of the multiples of `unit`.
std::string nearest_multiples(std::int64_t value, std::int64_t unit) {
  const std::int64_t low = value / unit * unit;
  return low == 0 ? fmt::format("{}", unit) : fmt::format("{} or {}", low, low + unit);
}

std::string ranks_text(std::int64_t ranks) {
  return fmt::format("{} rank{}", ranks, ranks == 1 ? "" : "s");
}

/// The schedule as the config spells it.
const char* spelt(ScheduleKind schedule) {
  switch (schedule) {
    case ScheduleKind::k1F1B:
      return "1f1b";
    case ScheduleKind::kGpipe:
      return "gpipe";
    case ScheduleKind::kInterleaved:
      return "interleaved";
  }
  return "";
}

/// Why groups of this size cannot hold the model; "" if they can.
std::string objection(const ModelSpec& model, std::int64_t size) {
  const bool gpt2 = model.model_type == "gpt2";  // whose keys have other names
  const std::int64_t shared = model.num_key_value_heads;
  if (model.num_heads % size != 0) {
    return fmt::format("{} does not divide model.{} {}, and a rank holds whole heads", size,
                       gpt2 ? "n_head" : "num_attention_heads", model.num_heads);
  }
  if (shared % size != 0 && size % shared != 0) {
    return fmt::format(
        "{} neither divides model.num_key_value_heads {} nor is a multiple of it, and a rank holds "
        "whole heads",
        size, shared);
  }
  if (model.intermediate_size % size != 0) {
    return fmt::format("{} does not divide model.{} {}, of which a rank holds an equal share", size,
                       gpt2 ? "n_inner" : "intermediate_size", model.intermediate_size);
  }
  return "";
}

/// The degrees of one config among a number of ranks.
class Mesh {
 public:
  Mesh(const Config& config, std::int64_t world, Origins& origins)
      : config_(config), world_(world), origins_(origins) {}

  void check_world() const {
    if (world_ % (size_ * stages_) == 0) return;
    const char* path = size_ > 1 ? kSize : kStages;
    const std::string product =
        size_ == 1 || stages_ == 1
            ? fmt::format("{}", size_ * stages_)
            : fmt::format("{} × {} {} = {}", size_, kStages, stages_, size_ * stages_);
    std::string fixes = "run " + nearest_multiples(world_, size_ * stages_);
    add_fix(fixes, kSize, better_sizes());
    add_fix(fixes, kStages, better_stages());
    throw_config_error(
        origins_[path], path,
        fmt::format("{} does not divide the {}: {}", product, ranks_text(world_), fixes));
  }

  void check_tensor() const {
    const std::string wrong = objection(config_.model, size_);
    if (!wrong.empty()) {
      throw_config_error(origins_[kSize], kSize,
                         fmt::format("{}: set it to {}, which the {} allow as well", wrong,
                                     better_sizes(), ranks_text(world_)));
    }
    const OptimizerKind optimizer = config_.optimizer.kind;
    const bool muon = optimizer == OptimizerKind::kMuon;
    if (size_ > 1 && (muon || optimizer == OptimizerKind::kLamb)) {
      throw_config_error(
          origins_["optimizer.type"], "optimizer.type",
          fmt::format(
              "{}, which {} {} splits: use \"AdamW\", \"Adam\", \"Lion\", \"SGD\" or "
              "\"Adagrad\", or set {} to 1",
              muon ? "\"Muon\" needs whole matrices" : "\"Lamb\" needs whole tensors' norms", kSize,
              size_, kSize));
    }
  }

  void check_chunks() const {
    const PipelineConfig& pipeline = config_.pipeline;
    const bool interleaved = pipeline.schedule == ScheduleKind::kInterleaved;
    if (pipeline.virtual_stages > 1 && stages_ == 1) {
      refuse(kVirtual, fmt::format("{} model chunks a stage need {} of at least 2, found 1: set "
                                   "that, or leave {} out",
                                   pipeline.virtual_stages, kStages, kVirtual));
    }
    if (pipeline.virtual_stages > 1 && !interleaved) {
      refuse(kVirtual,
             fmt::format("{} needs {} \"interleaved\", found \"{}\": write that, or leave "
                         "{} out",
                         pipeline.virtual_stages, kSchedule, spelt(pipeline.schedule), kVirtual));
    }
    if (interleaved && pipeline.virtual_stages < 2) {
      refuse(kSchedule,
             fmt::format("\"interleaved\" needs {} of at least 2, found {}: set that, or "
                         "write \"1f1b\" or \"gpipe\"",
                         kVirtual, pipeline.virtual_stages));
    }
    if (chunks() > layers()) {
      refuse(kStages, fmt::format("{} is more than {} {}, and each holds at least one block: {}",
                                  chunks_text(), layers_key(), layers(), fewer_chunks()));
    }
  }

  void check_partition() const {
    const std::vector<std::int64_t>& blocks = config_.pipeline.partition;
    if (blocks.empty()) return;
    const std::int64_t sum = std::accumulate(blocks.begin(), blocks.end(), std::int64_t{0});
    const std::string fix =
        fmt::format("write for example [{}], or leave it out to balance by cost",
                    fmt::join(even_partition(), ", "));
    if (static_cast<std::int64_t>(blocks.size()) != chunks()) {
      refuse(kPartition, fmt::format("has {} entries, and needs {} {}: {}", blocks.size(), kStages,
                                     chunks_text(), fix));
    }
    if (sum != layers()) {
      refuse(kPartition, fmt::format("[{}] sums to {}, and {} is {}: {}", fmt::join(blocks, ", "),
                                     sum, layers_key(), layers(), fix));
    }
  }

  [[nodiscard]] std::int64_t data_parallel() const { return world_ / (size_ * stages_); }

 private:
  [[noreturn]] void refuse(const char* path, const std::string& message) const {
    throw_config_error(origins_[path], path, message);
  }

  static void add_fix(std::string& fixes, const char* path, const std::string& values) {
    if (!values.empty()) fixes += fmt::format(", or set {} to {}", path, values);
  }

  /// Sizes that fit the model and, with the stages as they are, the ranks.
  [[nodiscard]] std::string better_sizes() const {
    return nearest(size_, world_ / stages_, [&](std::int64_t size) {
      return world_ % (size * stages_) == 0 && objection(config_.model, size).empty();
    });
  }
  [[nodiscard]] std::string better_stages() const {
    const std::int64_t most = std::min(world_ / size_, layers() / config_.pipeline.virtual_stages);
    return nearest(stages_, most, [&](std::int64_t stages) {
      return world_ % (size_ * stages) == 0 && (stages > 1 || config_.pipeline.virtual_stages == 1);
    });
  }

  /// How to have no more chunks than blocks. Several chunks a stage need two of each.
  [[nodiscard]] std::string fewer_chunks() const {
    const std::int64_t per_stage = config_.pipeline.virtual_stages;
    const std::int64_t most_stages = layers() / per_stage;
    const std::int64_t most_per_stage = layers() / stages_;
    if (per_stage == 1) return fmt::format("set {} to at most {}", kStages, layers());
    if (most_stages < 2 && most_per_stage < 2) {
      return fmt::format("leave {} and {} out, and set {} to at most {}", kSchedule, kVirtual,
                         kStages, layers());
    }
    std::string fixes;
    if (most_stages >= 2) fixes = fmt::format("set {} to at most {}", kStages, most_stages);
    if (most_per_stage >= 2) {
      fixes += fmt::format("{}set {} to at most {}", fixes.empty() ? "" : ", or ", kVirtual,
                           most_per_stage);
    }
    return fixes;
  }

  [[nodiscard]] std::int64_t layers() const { return config_.model.num_layers; }
  [[nodiscard]] const char* layers_key() const {
    return config_.model.model_type == "gpt2" ? "model.n_layer" : "model.num_hidden_layers";
  }
  [[nodiscard]] std::int64_t chunks() const { return stages_ * config_.pipeline.virtual_stages; }
  /// "2", or "2 × pipeline.virtual_stages 3 = 6"; stands after "pipeline.stages".
  [[nodiscard]] std::string chunks_text() const {
    const int per_stage = config_.pipeline.virtual_stages;
    return per_stage == 1 ? fmt::format("{}", stages_)
                          : fmt::format("{} × {} {} = {}", stages_, kVirtual, per_stage, chunks());
  }
  [[nodiscard]] std::vector<std::int64_t> even_partition() const {
    std::vector<std::int64_t> blocks(static_cast<std::size_t>(chunks()), layers() / chunks());
    for (std::int64_t i = 0; i < layers() % chunks(); ++i) {
      ++blocks[static_cast<std::size_t>(i)];
    }
    return blocks;
  }

  const Config& config_;
  std::int64_t world_;
  Origins& origins_;
  std::int64_t size_ = config_.tensor_parallel.size;
  std::int64_t stages_ = config_.pipeline.stages;
};

void resolve_sequence_parallel(LoadedConfig& loaded, Origins& origins) {
  TensorParallelConfig& tensor = loaded.config.tensor_parallel;
  if (!tensor.sequence_parallel) return;
  if (tensor.size == 1) {
    tensor.sequence_parallel = false;
    origins[kSequenceParallel] = "derived: tensor_parallel.size is 1";
    loaded.notices.push_back(fmt::format("no effect: {}: {} is 1, there is nobody to share with",
                                         kSequenceParallel, kSize));
    return;
  }
  const std::int64_t micro = loaded.config.batch.micro_batch_size.value();
  const std::int64_t sequence = loaded.config.data.sequence_length;
  const std::int64_t size = tensor.size;
  // (micro · sequence) mod size without the product, which may not fit.
  const std::int64_t unit = size / std::gcd(sequence, size);
  if (micro % unit == 0) return;
  throw_config_error(
      origins[kSequenceParallel], kSequenceParallel,
      fmt::format(
          "a micro-batch's tokens, train_micro_batch_size_per_gpu {} × data.sequence_length "
          "{}, do not divide among {} {}: set the one to {}, or the other to a multiple of "
          "{}, or write false",
          micro, sequence, kSize, size, nearest_multiples(micro, unit),
          size / std::gcd(micro, size)));
}

void resolve_pipeline(LoadedConfig& loaded, Origins& origins) {
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
            "{} out",
            kStages, stages, micro_batches, nearest_multiples(micro_batches, stages), kVirtual));
  }
  if (micro_batches < stages) {  // never with "interleaved", whose idle share is another
    const double idle =
        static_cast<double>(stages - 1) / static_cast<double>(micro_batches + stages - 1);
    loaded.notices.push_back(fmt::format(
        "{}: {} with only {} micro-batch{} a step (gradient_accumulation_steps): a stage is idle "
        "for {:.0f} % of it, (p-1)/(m+p-1)",
        kStages, stages, micro_batches, micro_batches == 1 ? "" : "es", 100.0 * idle));
  }
  if (config.zero.stage >= 2) {
    loaded.notices.push_back(fmt::format(
        "zero_optimization.stage: {} with {} {}, which DeepSpeed refuses: gradients are "
        "reduce-scattered after every micro-batch (gradient_accumulation_steps {}), where stage 1 "
        "does it once a step",
        config.zero.stage, kStages, stages, micro_batches));
  }
}

}  // namespace

std::int64_t divide_ranks(const LoadedConfig& loaded, int world_size, Origins& origins) {
  const Mesh mesh(loaded.config, world_size, origins);
  mesh.check_chunks();
  mesh.check_world();
  mesh.check_tensor();
  mesh.check_partition();
  return mesh.data_parallel();
}

void resolve_parallel(LoadedConfig& loaded, Origins& origins) {
  resolve_sequence_parallel(loaded, origins);
  resolve_pipeline(loaded, origins);
}

}  // namespace dstrain
