// How ranks are divided among pipeline stages, groups that share sequences, tensor-parallel groups
// and data parallelism, and
// what the model allows. The checks that depend on the batch are in resolve_parallel.cpp.
#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

#include <fmt/format.h>

#include "engine/config/arch/family.h"
#include "engine/config/json_text.h"
#include "engine/config/nearest_layout.h"
#include "engine/config/resolve_parts.h"

namespace dstrain {
namespace {

constexpr const char* kSize = "tensor_parallel.size";
constexpr const char* kContext = "context_parallel.size";
constexpr const char* kStages = "pipeline.stages";
constexpr const char* kSchedule = "pipeline.schedule";
constexpr const char* kVirtual = "pipeline.virtual_stages";
constexpr const char* kPartition = "pipeline.partition";

/// "2 or 8": the nearest to `value` on either side, in [1, most], that fit; "" if none does.
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

/// The degrees of one config among a number of ranks.
class Mesh {
 public:
  Mesh(const Config& config, std::int64_t world, Origins& origins)
      : config_(config), world_(world), origins_(origins) {}

  void check_world() const {
    const std::int64_t unit = size_ * stages_ * context_;
    if (world_ % unit == 0) return;
    const char* path = nullptr;
    std::string product;
    for (const auto& [name, degree] :
         {std::pair{kSize, size_}, {kStages, stages_}, {kContext, context_}}) {
      if (degree == 1) continue;
      product +=
          path == nullptr ? fmt::format("{}", degree) : fmt::format(" × {} {}", name, degree);
      path = path == nullptr ? name : path;
    }
    const std::string all = fmt::format("{}", unit);
    if (product != all) product += " = " + all;
    std::string fixes = "run " + nearest_multiples(world_, unit);
    add_fix(fixes, kSize, better_sizes());
    add_fix(fixes, kStages, better_stages());
    if (context_ > 1) add_fix(fixes, kContext, better_contexts());
    refuse_layout(path,
                  fmt::format("{} does not divide the {}: {}", product, ranks_text(world_), fixes));
  }

  void check_tensor() const {
    const std::string wrong = objection_to_size(config_.model, size_);
    if (!wrong.empty()) {
      refuse_layout(kSize, fmt::format("{}: set it to {}, which the {} allow as well", wrong,
                                       better_sizes(), ranks_text(world_)));
    }
    const OptimizerKind optimizer = config_.optimizer.kind;
    if (size_ > 1 && needs_whole_tensors(optimizer)) {
      refuse_layout(
          "optimizer.type",
          fmt::format("{}, which {} {} splits: use \"AdamW\", \"Adam\", \"Lion\", \"SGD\", "
                      "\"Adagrad\" or \"RMSprop\", or set {} to 1",
                      optimizer == OptimizerKind::kMuon ? "\"Muon\" needs whole matrices"
                      : optimizer == OptimizerKind::kLamb
                          ? "\"Lamb\" needs whole tensors' norms"
                          : "\"OneBitLamb\" needs whole tensors' norms",
                      kSize, size_, kSize));
    }
  }

  void check_chunks() const {
    const PipelineConfig& pipeline = config_.pipeline;
    const bool interleaved = pipeline.schedule == ScheduleKind::kInterleaved;
    if (pipeline.virtual_stages > 1 && stages_ == 1) {
      refuse_layout(kVirtual,
                    fmt::format("{} model chunks a stage need {} of at least 2, found 1: set that, "
                                "or leave {} out",
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
      refuse_layout(kStages,
                    fmt::format("{} is more than {} {}, and each holds at least one block: {}",
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
      refuse_layout(kPartition, fmt::format("has {} entries, and needs {} {}: {}", blocks.size(),
                                            kStages, chunks_text(), fix));
    }
    if (sum != layers()) {
      refuse(kPartition, fmt::format("[{}] sums to {}, and {} is {}: {}", fmt::join(blocks, ", "),
                                     sum, layers_key(), layers(), fix));
    }
  }

  [[nodiscard]] std::int64_t data_parallel() const { return world_ / (size_ * stages_ * context_); }

 private:
  [[noreturn]] void refuse(const char* path, const std::string& message) const {
    throw_config_error(origins_[path], path, message);
  }
  /// Refuses a layout whose degrees or number of ranks are to blame.
  [[noreturn]] void refuse_layout(const char* path, const std::string& message) const {
    refuse(path, message + layout_advice(config_, world_));
  }

  static void add_fix(std::string& fixes, const char* path, const std::string& values) {
    if (!values.empty()) fixes += fmt::format(", or set {} to {}", path, values);
  }

  /// Sizes that fit the model and, with the stages as they are, the ranks.
  [[nodiscard]] std::string better_sizes() const {
    return nearest(size_, world_ / (stages_ * context_), [&](std::int64_t size) {
      return world_ % (size * stages_ * context_) == 0 &&
             objection_to_size(config_.model, size).empty();
    });
  }
  [[nodiscard]] std::string better_stages() const {
    const std::int64_t most =
        std::min(world_ / (size_ * context_), layers() / config_.pipeline.virtual_stages);
    return nearest(stages_, most, [&](std::int64_t stages) {
      return world_ % (size_ * stages * context_) == 0 &&
             (stages > 1 || config_.pipeline.virtual_stages == 1);
    });
  }
  [[nodiscard]] std::string better_contexts() const {
    return nearest(context_, world_ / (size_ * stages_),
                   [&](std::int64_t context) { return world_ % (size_ * stages_ * context) == 0; });
  }

  /// Says how to have no more chunks than blocks. Several chunks per stage need two of each.
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
  [[nodiscard]] std::string layers_key() const {
    return key_path(config_.model, "num_hidden_layers");
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
  std::int64_t context_ = config_.context_parallel.size;
};

}  // namespace

std::optional<std::int64_t> divide_ranks(const LoadedConfig& loaded,
                                         int world_size,
                                         Origins& origins,
                                         ConfigProblems& problems) {
  const auto has_degrees = [&] { return !problems.spoil_any({kSize, kStages, kContext}); };
  const bool has_model = !problems.spoil_any(
      {"model.model_type", "model.num_hidden_layers", "model.n_layer", "model.hidden_size",
       "model.n_embd", "model.num_attention_heads", "model.n_head", "model.num_key_value_heads",
       "model.intermediate_size", "model.moe_intermediate_size", "model.n_inner", "model.ffn_dim"});
  if (!has_degrees() || !has_model || problems.spoil_any({kSchedule, kVirtual})) {
    return std::nullopt;
  }
  const Mesh mesh(loaded.config, world_size, origins);
  problems.attempt([&] { mesh.check_chunks(); });
  if (has_degrees()) problems.attempt([&] { mesh.check_world(); });
  if (has_degrees()) problems.attempt([&] { mesh.check_tensor(); });
  if (!problems.spoil_any({kStages, kSchedule, kVirtual, kPartition})) {
    problems.attempt([&] { mesh.check_partition(); });
  }
  return has_degrees() ? std::optional(mesh.data_parallel()) : std::nullopt;
}

}  // namespace dstrain
