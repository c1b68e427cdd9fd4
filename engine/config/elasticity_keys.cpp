// "elasticity": DeepSpeed's way to a batch that many numbers of ranks can share.
#include "engine/config/key_builders.h"

namespace dstrain {
namespace {

constexpr KeyBlock kElasticity{"elasticity.", &Config::elasticity};

constexpr double kMostSequences = 1e9;
constexpr double kMostRanks = 1e6;
const char* const kMicroBatches = "elasticity.micro_batch_sizes";

/// Shows the key only where elasticity is switched on.
Key shown_if_enabled(Key key) {
  key.get = [get = std::move(key.get)](const Config& config) {
    return config.elasticity.enabled ? get(config) : std::string();
  };
  return key;
}

template <typename Member>
Key elastic(const char* name, NumberRange range, Member ElasticityConfig::*member) {
  return shown_if_enabled(kElasticity.field(name, range, member));
}

std::vector<std::int64_t> read_sizes(const JsonNode& node) {
  auto sizes = positive_integers(node, kMostSequences);
  if (!sizes) {
    throw_config_error(
        node.where, kMicroBatches,
        fmt::format("must be a list of positive integers, such as [2, 4, 6]; found {}",
                    node.dump()));
  }
  return std::move(*sizes);
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
      elastic("enabled", {}, &ElasticityConfig::enabled),
      elastic("max_train_batch_size", between(1, kMostSequences),
              &ElasticityConfig::max_train_batch_size),
      shown_if_enabled(micro_batch_sizes()),
      elastic("min_gpus", between(1, kMostRanks), &ElasticityConfig::min_gpus),
      elastic("max_gpus", between(1, kMostRanks), &ElasticityConfig::max_gpus),
      elastic("num_gpus_per_node", between(1, kMostRanks), &ElasticityConfig::num_gpus_per_node),
      elastic("model_parallel_size", between(1, kMostRanks),
              &ElasticityConfig::model_parallel_size),
      elastic("prefer_larger_batch", {}, &ElasticityConfig::prefer_larger_batch),
      elastic("ignore_non_elastic_batch_info", {},
              &ElasticityConfig::ignore_non_elastic_batch_info),
      shown_if_enabled(version()),
      no_effect("elasticity.min_time", KeyKind::kNumber, "a restart comes when it is needed"),
  };
}

}  // namespace dstrain
