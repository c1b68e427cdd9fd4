#include "cmd/memory/memory_flags.h"

#include <utility>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "engine/config/config_keys.h"
#include "engine/config/did_you_mean.h"
#include "engine/config/model_config_file.h"

namespace dstrain {
namespace {

constexpr const char* kTrain = "train_batch_size";
constexpr const char* kMicro = "train_micro_batch_size_per_gpu";
constexpr const char* kAccumulation = "gradient_accumulation_steps";

/// The value at `path` unless it is left open.
const JsonNode* written(const JsonNode& root, const std::string& path) {
  const JsonNode* node = find_path(root, path);
  const bool open = node == nullptr || node->is(JsonNode::Kind::kNull) || node->is_text("auto");
  return open ? nullptr : node;
}

LoadOptions options_with(const EstimateFlags& flags, std::vector<std::string> overrides) {
  LoadOptions options = options_of(flags.run);
  options.overrides = std::move(overrides);
  options.accept_model_config = true;
  return options;
}

class OverrideList {
 public:
  explicit OverrideList(const EstimateFlags& flags)
      : flags_(flags),
        tree_(read_config_tree(
            flags.run.config, options_with(flags, flags.run.overrides), problems_)) {}

  std::vector<std::string> list() {
    add_batch();
    add_optimizer();
    add_precision();
    add("--zero", "zero_optimization.stage", flags_.zero);
    add("--sequence-length", "data.sequence_length", flags_.sequence_length);
    add("--tensor-parallel", "tensor_parallel.size", flags_.tensor_parallel);
    if (flags_.sequence_parallel) {
      give(*flags_.sequence_parallel ? "--sequence-parallel" : "--no-sequence-parallel",
           "tensor_parallel.sequence_parallel", *flags_.sequence_parallel ? "true" : "false");
    }
    add("--pipeline", "pipeline.stages", flags_.pipeline);
    if (!flags_.recompute.empty()) {
      give("--recompute", "activation_checkpointing.granularity", json_quote(flags_.recompute));
    }
    list_.insert(list_.end(), flags_.run.overrides.begin(), flags_.run.overrides.end());
    return std::move(list_);
  }

 private:
  /// Of the three values of the batch identity, those given by flags stay. --micro-batch changes
  /// how a step is cut, not its size: where the file has a train_batch_size, accumulation yields to
  /// it. --accumulation changes how long a step is: where the file has a micro-batch,
  /// train_batch_size yields.
  void add_batch() {
    add("--micro-batch", kMicro, flags_.micro_batch);
    add("--accumulation", kAccumulation, flags_.accumulation);
    if (!flags_.micro_batch && !flags_.accumulation) return;
    const bool micro = flags_.micro_batch.has_value() || is_set(kMicro);
    const bool accumulation = flags_.accumulation.has_value() || is_set(kAccumulation);
    if (is_set(kTrain)) {
      if (micro != accumulation) yield(micro ? kAccumulation : kMicro);
    } else if (accumulation && (micro || written(tree_.root, kMicro) != nullptr)) {
      yield(kTrain);
    } else if (micro && !accumulation && written(tree_.root, kTrain) != nullptr) {
      yield(kAccumulation);
    }
  }

  /// Parameters belong to one optimizer, so those of the file's optimizer go with it. Where the
  /// flag names the same one, they stay, so that for example SGD keeps the momentum that costs
  /// memory.
  void add_optimizer() {
    if (flags_.optimizer.empty()) return;
    const JsonNode* type = written(tree_.root, "optimizer.type");
    const bool same = type != nullptr && type->is(JsonNode::Kind::kString) &&
                      edit_distance(type->text, flags_.optimizer) == 0;
    refuse_twice("--optimizer", "optimizer.type");
    const std::string name = json_quote(flags_.optimizer);
    list_.push_back(same ? "optimizer.type=" + name
                         : fmt::format("optimizer={{\"type\": {}}}", name));
  }

  void add_precision() {
    if (flags_.precision.empty()) return;
    for (const char* block : {"bf16", "fp16"}) {
      give("--precision", fmt::format("{}.enabled", block),
           flags_.precision == block ? "true" : "false");
    }
  }

  void add(const char* flag, const std::string& path, const std::optional<std::int64_t>& value) {
    if (value) give(flag, path, std::to_string(*value));
  }
  void give(const char* flag, const std::string& path, const std::string& json) {
    refuse_twice(flag, path);
    list_.push_back(path + "=" + json);
  }
  void yield(const std::string& path) { list_.push_back(path + "=auto"); }

  /// Whether --set gives this key, or a block that holds it.
  [[nodiscard]] bool is_set(const std::string& path) const {
    for (const std::string& text : flags_.run.overrides) {
      const std::string given = text.substr(0, text.find('='));
      if (given == path || path.starts_with(given + ".")) return true;
    }
    return false;
  }
  void refuse_twice(const char* flag, const std::string& path) const {
    if (!is_set(path)) return;
    throw_config_error(flag, path, "given by --set as well: leave one out");
  }

  const EstimateFlags& flags_;
  ConfigProblems problems_;  // said once the config is loaded with the list
  ConfigTree tree_;
  std::vector<std::string> list_;
};

}  // namespace

void add_estimate_flags(CLI::App& command, EstimateFlags& flags) {
  add_run_flags(command, flags.run);
  command.get_option("CONFIG")->description(
      "The run's JSON file; or a Hugging Face model's config.json, or the folder that holds it");
  command.option_defaults()->group("Instead of --set");
  command.add_option("--zero", flags.zero, "zero_optimization.stage, 0 to 3");
  command.add_option("--micro-batch", flags.micro_batch,
                     "train_micro_batch_size_per_gpu: sequences that a rank computes at once; "
                     "the file's train_batch_size, if any, stays, and "
                     "gradient_accumulation_steps changes");
  command.add_option("--sequence-length", flags.sequence_length,
                     "data.sequence_length: tokens per sequence");
  command
      .add_option("--precision", flags.precision,
                  "Precision the model computes in: sets bf16.enabled and fp16.enabled")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  command.add_option("--accumulation", flags.accumulation,
                     "gradient_accumulation_steps: micro-batches per step; the file's "
                     "micro-batch size, if any, stays, and train_batch_size changes");
  command.add_option("--tensor-parallel", flags.tensor_parallel,
                     "tensor_parallel.size: ranks that share every matrix");
  command.add_flag_function(  // add_flag would write false where there is none
      "--sequence-parallel,!--no-sequence-parallel",
      [&flags](std::int64_t count) { flags.sequence_parallel = count > 0; },
      "tensor_parallel.sequence_parallel: ranks of a tensor-parallel group also share what lies "
      "between the matrices");
  command.add_option("--pipeline", flags.pipeline, "pipeline.stages");
  command.add_option("--recompute", flags.recompute, "activation_checkpointing.granularity")
      ->type_name("none|selective|full");
  command.add_option("--optimizer", flags.optimizer,
                     "optimizer.type; with its default parameters if the file names another one");
  command.option_defaults()->group("Hosts");
  command
      .add_option("-H,--hostfile", flags.hostfile,
                  "File with lines \"HOST slots=N\", one rank per slot; no host is contacted")
      ->type_name("FILE");
  command.add_option("--num_nodes", flags.hosts.num_nodes,
                     "Number of hosts, 1 by default; with a hostfile, only its first N");
  command.add_option("--num_gpus,--num_accelerators", flags.hosts.num_gpus,
                     "Ranks on each host, 1 by default; with a hostfile, the first N slots of "
                     "each host");
}

std::vector<std::string> to_overrides(const EstimateFlags& flags) {
  return OverrideList(flags).list();
}

LoadedConfig load_and_resolve(const EstimateFlags& flags,
                              std::vector<std::string> overrides,
                              int world_size,
                              const MachineFacts& facts) {
  return load_and_resolve(flags.run.config, options_with(flags, std::move(overrides)), world_size,
                          facts);
}

std::vector<launcher::Host> estimated_hosts(const EstimateFlags& flags) {
  if (!flags.hostfile.empty()) {
    launcher::Hostfile file = launcher::read_hostfile(flags.hostfile);
    for (const std::string& warning : file.warnings)
      spdlog::warn("{}", warning);
    return launcher::filter_hosts(std::move(file.hosts), flags.hosts);
  }
  return launcher::imagined_hosts(flags.hosts);
}

}  // namespace dstrain
