// The keys of multi-head latent attention.
#include "engine/config/family_keys.h"

namespace dstrain {
namespace {

bool has_latent(const Family& family) {
  return family.base.latent.latent_rank > 0;
}

Key size_of_latent(const char* name, std::int64_t LatentSpec::*member) {
  return for_families(field(
                          "model." + std::string(name), between(1, kLargestSize),
                          [member](auto& config) -> auto& { return config.model.latent.*member; }),
                      has_latent);
}

/// null: queries come straight from the stream.
Key q_lora_rank() {
  Key key{.path = "model.q_lora_rank",
          .kind = KeyKind::kAny,
          .auto_rule = AutoRule::kDefault,
          .null_is_value = true};
  key.shape = R"({"type": "integer", "minimum": 1, "maximum": 1000000000000})";
  key.set = [](ConfigDraft& draft, const JsonNode& node) {
    const std::int64_t rank = node.integer.value_or(0);
    if (!node.is(JsonNode::Kind::kNull) && (rank < 1 || static_cast<double>(rank) > kLargestSize)) {
      throw_config_error(node.where, "model.q_lora_rank",
                         "must be null or an integer from 1 to 10¹², found " + node.describe());
    }
    draft.config.model.latent.query_rank = rank;
  };
  key.get = [](const Config& c) -> std::string {
    const std::int64_t rank = c.model.latent.query_rank;
    return rank == 0 ? "null" : std::to_string(rank);
  };
  return for_families(key, has_latent);
}

}  // namespace

std::vector<Key> latent_keys() {
  return {size_of_latent("kv_lora_rank", &LatentSpec::latent_rank), q_lora_rank(),
          size_of_latent("qk_nope_head_dim", &LatentSpec::plain_dim),
          size_of_latent("qk_rope_head_dim", &LatentSpec::rotated_dim),
          size_of_latent("v_head_dim", &LatentSpec::value_dim)};
}

}  // namespace dstrain
