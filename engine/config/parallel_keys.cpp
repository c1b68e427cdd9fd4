// "pipeline", "tensor_parallel" and "context_parallel": how the model and the tokens of a sequence
// are divided among ranks. DeepSpeed keeps the pipeline's shape in Python; schedule, virtual_stages
// and a written partition are dstrain's.
#include "engine/config/key_builders.h"

namespace dstrain {
namespace {

constexpr KeyBlock kTensorParallel{"tensor_parallel.", &Config::tensor_parallel};
constexpr KeyBlock kExpertParallel{"expert_parallel.", &Config::expert_parallel};
constexpr KeyBlock kContextParallel{"context_parallel.", &Config::context_parallel};
constexpr KeyBlock kPipeline{"pipeline.", &Config::pipeline};

constexpr double kMostRanks = 1e6;
constexpr double kMostBlocks = 1e9;

const char* const kPartition = "pipeline.partition";

/// DeepSpeed's methods, of which only "best", its default, means what dstrain does anyway.
[[noreturn]] void throw_partition_method(const JsonNode& node) {
  throw_config_error(
      node.where, kPartition,
      fmt::format("{} is refused: DeepSpeed's methods are not in dstrain, which balances the "
                  "stages by cost: leave it out, or write the blocks of each stage, such as [3, 3]",
                  node.dump()));
}

std::vector<std::int64_t> read_partition(const JsonNode& node) {
  if (node.is_text("best")) return {};
  if (node.is(JsonNode::Kind::kString)) throw_partition_method(node);
  auto blocks = positive_integers(node, kMostBlocks);
  if (!blocks) {
    throw_config_error(node.where, kPartition,
                       fmt::format("must be a list of positive integers, the blocks of each stage, "
                                   "such as [3, 3]; found {}",
                                   node.dump()));
  }
  return std::move(*blocks);
}

Key partition() {
  Key key{.path = kPartition, .kind = KeyKind::kAny};
  key.shape = R"({"anyOf": [{"const": "best"}, {"type": "array", "minItems": 1,
                  "items": {"type": "integer", "minimum": 1, "maximum": 1e9}}]})";
  key.set = [](ConfigDraft& draft, const JsonNode& node) {
    draft.config.pipeline.partition = read_partition(node);
  };
  key.get = [](const Config& c) -> std::string {
    const std::vector<std::int64_t>& blocks = c.pipeline.partition;
    return blocks.empty() ? "" : fmt::format("[{}]", fmt::join(blocks, ", "));
  };
  return key;
}

/// The key has two other places in DeepSpeed's config, where 0 leaves AutoTP off.
Key tensor_parallel_size() {
  Key key = also_called(
      kTensorParallel.field("size", between(1, kMostRanks), &TensorParallelConfig::size),
      {"tensor_parallel.autotp_size", "tensor_parallel.tp.tp_size"});
  key.unset_by = {{"tensor_parallel.autotp_size", "0"}};
  return key;
}

/// Also by Megatron's words.
Key context_kind() {
  Key key{.path = "context_parallel.kind", .kind = KeyKind::kString};
  const std::vector<std::pair<std::string, ContextKind>> names{
      {"ring", ContextKind::kRing}, {"ulysses", ContextKind::kUlysses}, {"usp", ContextKind::kUsp}};
  for (const auto& [name, kind] : names) {
    key.choices.push_back(name);
  }
  key.synonyms = {{"p2p", "ring"}, {"a2a", "ulysses"}, {"a2a+p2p", "usp"}};
  key.set = [names](ConfigDraft& draft, const JsonNode& node) {
    for (const auto& [name, kind] : names) {
      if (name == node.text) draft.config.context_parallel.kind = kind;
    }
  };
  key.get = [names](const Config& config) -> std::string {
    for (const auto& [name, kind] : names) {
      if (kind == config.context_parallel.kind) return json_quote(name);
    }
    return "";
  };
  return also_called(std::move(key), {"context_parallel.cp_comm_type", "cp_comm_type"});
}

const char* const kHierarchy = "hierarchical_context_parallel_sizes";

Key hierarchical_sizes() {
  Key key{.path = kHierarchy, .kind = KeyKind::kAny, .null_is_absent = true};
  key.shape = R"({"type": "array", "minItems": 2, "maxItems": 2,
                  "items": {"type": "integer", "minimum": 1, "maximum": 1e6}})";
  key.set = [](ConfigDraft& draft, const JsonNode& node) {
    auto sizes = positive_integers(node, kMostRanks);
    if (!sizes || sizes->size() != 2 || sizes->front() * sizes->back() > std::int64_t{1'000'000}) {
      throw_config_error(node.where, kHierarchy,
                         fmt::format("must be a list of two positive integers, of the ranks that "
                                     "exchange heads and of those that exchange keys, such as "
                                     "[2, 4]; found {}",
                                     node.dump()));
    }
    draft.config.context_parallel.hierarchical_sizes = std::move(*sizes);
  };
  key.get = [](const Config& c) -> std::string {
    const std::vector<std::int64_t>& sizes = c.context_parallel.hierarchical_sizes;
    return sizes.empty() ? "" : fmt::format("[{}]", fmt::join(sizes, ", "));
  };
  return also_called(std::move(key), {"context_parallel.hierarchical_context_parallel_sizes"});
}

Key recomputation_interval() {
  Key key = no_effect("pipeline.activation_checkpoint_interval", KeyKind::kAny,
                      "activation_checkpointing decides what is recomputed");
  key.accepted = {"0"};
  return key;
}

}  // namespace

std::vector<Key> parallel_keys() {
  return {
      kPipeline.field("stages", between(1, kMostRanks), &PipelineConfig::stages),
      kPipeline.choice("schedule",
                       {{"1f1b", ScheduleKind::k1F1B},
                        {"gpipe", ScheduleKind::kGpipe},
                        {"interleaved", ScheduleKind::kInterleaved}},
                       &PipelineConfig::schedule),
      kPipeline.field("virtual_stages", between(1, kMostRanks), &PipelineConfig::virtual_stages),
      partition(),
      no_effect("pipeline.seed_layers", KeyKind::kAny,
                "a parameter's initial values follow from the seed and its name, on any number of "
                "stages"),
      recomputation_interval(),
      no_effect("pipeline.pipe_partitioned", KeyKind::kAny,
                "tensor_parallel.sequence_parallel decides whether what stages exchange is split"),
      no_effect("pipeline.grad_partitioned", KeyKind::kAny,
                "tensor_parallel.sequence_parallel decides whether what stages exchange is split"),

      also_called(
          kContextParallel.field("size", between(1, kMostRanks), &ContextParallelConfig::size),
          {"context_parallel.context_parallel_size", "context_parallel_size"}),
      context_kind(),
      kContextParallel.choice(
          "order", {{"zigzag", ContextOrder::kZigzag}, {"contiguous", ContextOrder::kContiguous}},
          &ContextParallelConfig::order),
      kContextParallel.field("ulysses_size", between(1, kMostRanks),
                             &ContextParallelConfig::ulysses_size),
      null_is_default(field("sequence_parallel_size", between(1, kMostRanks),
                            kContextParallel.to(&ContextParallelConfig::ulysses_ranks))),
      hierarchical_sizes(),

      also_called(
          kExpertParallel.field("size", between(1, kMostRanks), &ExpertParallelConfig::size),
          {"expert_parallel.expert_model_parallel_size", "expert_model_parallel_size"}),
      also_called(null_is_default(kExpertParallel.field("tensor_size", between(1, kMostRanks),
                                                        &ExpertParallelConfig::tensor_size)),
                  {"expert_parallel.expert_tensor_parallel_size", "expert_tensor_parallel_size"}),

      tensor_parallel_size(),
      kTensorParallel.field("sequence_parallel", {}, &TensorParallelConfig::sequence_parallel),
      no_effect("tensor_parallel.tp.tp_grain_size", KeyKind::kAny,
                "a rank holds whole attention heads and an equal share of the MLP"),
      no_effect("tensor_parallel.tp_overlap_comm", KeyKind::kAny,
                "dstrain decides what is computed beside a collective"),
      no_effect("tensor_parallel.preset_model", KeyKind::kAny,
                "model.model_type decides how each layer is split"),
      no_effect("tensor_parallel.partition_config", KeyKind::kAny,
                "model.model_type decides how each layer is split"),
      no_effect("tensor_parallel.dtype", KeyKind::kAny, "\"bf16\" and \"fp16\" decide it"),
      no_effect("tensor_parallel.keep_module_on_host", KeyKind::kAny,
                "a rank makes its own part of the parameters, where it computes"),
  };
}

}  // namespace dstrain
