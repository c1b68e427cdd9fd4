// "elasticity": DeepSpeed's way to a batch that many numbers of ranks can share.
#include "engine/config/key_builders.h"

namespace dstrain {
namespace {

constexpr double kMostSequences = 1e9;
constexpr double kMostRanks = 1e6;
const char* const kMicroBatches = "elasticity.micro_batch_sizes";

/// Only of interest where it is switched on.
Key shown_if_enabled(Key key) {
  key.get = [get = std::move(key.get)](const Config& config) {
    return config.elasticity.enabled ? get(config) : std::string();
  };
  return key;
}

std::vector<std::int64_t> read_sizes(const JsonNode& node) {
  std::vector<std::int64_t> sizes;
  bool positive = node.is(JsonNode::Kind::kArray) && !node.items.empty();
  for (const JsonNode& item : node.items) {
    const bool fits = item.is(JsonNode::Kind::kNumber) && item.integer && *item.integer >= 1 &&
                      item.number <= kMostSequences;
    positive = positive && fits;
    if (fits) sizes.push_back(*item.integer);
  }
  if (!positive) {
    throw_config_error(
        node.where, kMicroBatches,
        fmt::format("must be a list of positive integers, such as [2, 4, 6]; found {}",
                    node.dump()));
  }
  return sizes;
}

Key micro_batch_sizes() {
  Key key{.path = kMicroBatches, .kind = KeyKind::kAny};
  key.shape = R"({"type": "array", "minItems": 1,
                  "items": {"type": "integer", "minimum": 1, "maximum": 1e9}})";
  key.set = [](ConfigDraft& draft, const JsonNode& node) {
    draft.config.elasticity.micro_batch_sizes = read_sizes(node);
  };
  key.get = [](const Config& c) {
    return fmt::format("[{}]", fmt::join(c.elasticity.micro_batch_sizes, ", "));
  };
  return key;
}

Key version() {
  Key key{.path = "elasticity.version", .kind = KeyKind::kNumber};
  key.shape = R"({"enum": [0.1, 0.2]})";
  key.set = [](ConfigDraft& draft, const JsonNode& node) {
    if (node.number != 0.1 && node.number != 0.2) {
      throw_config_error(node.where, "elasticity.version",
                         fmt::format("must be 0.1 or 0.2, found {}", node.dump()));
    }
    draft.config.elasticity.version =
        node.number == 0.1 ? ElasticityVersion::k01 : ElasticityVersion::k02;
  };
  key.get = [](const Config& c) -> std::string {
    return c.elasticity.version == ElasticityVersion::k01 ? "0.1" : "0.2";
  };
  return key;
}

}  // namespace

std::vector<Key> elasticity_keys() {
  return {
      shown_if_enabled(field(
          "elasticity.enabled", {}, [](auto& c) -> auto& { return c.elasticity.enabled; })),
      shown_if_enabled(field(
          "elasticity.max_train_batch_size", between(1, kMostSequences),
          [](auto& c) -> auto& { return c.elasticity.max_train_batch_size; })),
      shown_if_enabled(micro_batch_sizes()),
      shown_if_enabled(field(
          "elasticity.min_gpus", between(1, kMostRanks),
          [](auto& c) -> auto& { return c.elasticity.min_gpus; })),
      shown_if_enabled(field(
          "elasticity.max_gpus", between(1, kMostRanks),
          [](auto& c) -> auto& { return c.elasticity.max_gpus; })),
      shown_if_enabled(field(
          "elasticity.num_gpus_per_node", between(1, kMostRanks),
          [](auto& c) -> auto& { return c.elasticity.num_gpus_per_node; })),
      shown_if_enabled(field(
          "elasticity.model_parallel_size", between(1, kMostRanks),
          [](auto& c) -> auto& { return c.elasticity.model_parallel_size; })),
      shown_if_enabled(field(
          "elasticity.prefer_larger_batch", {},
          [](auto& c) -> auto& { return c.elasticity.prefer_larger_batch; })),
      shown_if_enabled(field(
          "elasticity.ignore_non_elastic_batch_info", {},
          [](auto& c) -> auto& { return c.elasticity.ignore_non_elastic_batch_info; })),
      shown_if_enabled(version()),
      no_effect("elasticity.min_time", KeyKind::kNumber, "a restart comes when it is needed"),
  };
}

}  // namespace dstrain
