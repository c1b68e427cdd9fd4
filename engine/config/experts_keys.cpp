// The keys of mixtures of experts: how many there are, how a router chooses among them, which
// layers have them, and the losses that keep them busy.
#include "engine/config/family_keys.h"

namespace dstrain {
namespace {

bool has_experts(const Family& family) {
  return family.base.experts.count > 0;
}
bool has_normalised_key(const Family& family) {
  return family.has_normalised_key;
}
bool has_expert_width(const Family& family) {
  return family.base.expert_width > 0;
}
bool has_shared(const Family& family) {
  return family.has_shared_expert_keys;
}
bool has_balancing_bias(const Family& family) {
  return family.base.experts.balancing_bias;
}
bool names_choice(const Family& family) {
  return has_shared(family) && !has_balancing_bias(family);
}
bool has_limit(const Family& family) {
  return family.base.feed_forward_limit > 0.0F;
}
bool has_dense_layers(const Family& family) {
  return family.has_dense_layer_keys;
}

/// Far more than any model has had. Each is three tensors of every block, of which plans make
/// lists.
constexpr double kMostExperts = 100'000;

/// A member of the model's experts.
template <typename Member>
auto of_experts(Member ExpertsSpec::*member) {
  return [member](auto& config) -> auto& {
    return config.model.experts.*member;
  };
}

/// The layers, counted from 0, that have none.
Key mlp_only_layers() {
  Key key{.path = "model.mlp_only_layers",
          .kind = KeyKind::kAny,
          .auto_rule = AutoRule::kDefault,
          .null_is_absent = true};
  key.shape = R"({"type": "array", "items": {"type": "integer", "minimum": 0}})";
  key.set = [](ConfigDraft& draft, const JsonNode& node) {
    if (!node.is(JsonNode::Kind::kArray)) {
      throw_config_error(node.where, "model.mlp_only_layers",
                         "must be a list of layers, found " + node.describe());
    }
    for (const JsonNode& item : node.items) {
      if (item.integer.value_or(-1) < 0) {
        throw_config_error(item.where, "model.mlp_only_layers",
                           "must be numbers of layers, counted from 0, found " + item.describe());
      }
      draft.dense_layers.push_back(*item.integer);
    }
  };
  key.get = [](const Config& c) -> std::string {
    std::string list;
    for (std::size_t layer = 0; layer < c.model.expert_layers.size(); ++layer) {
      if (!c.model.expert_layers[layer])
        list += fmt::format("{}{}", list.empty() ? "" : ", ", layer);
    }
    return "[" + list + "]";
  };
  return for_families(key, has_dense_layers);
}

/// Every layer whose number, counted from 1, is a multiple of this has experts, unless
/// mlp_only_layers names it.
Key decoder_sparse_step() {
  Key key = silent("model.decoder_sparse_step", KeyKind::kInteger);
  key.range = at_least(1);
  key.set = [](ConfigDraft& draft, const JsonNode& node) { draft.experts_every = node.integer; };
  return for_families(key, has_dense_layers);
}

/// The feed-forward for every token is as wide as so many experts; null: there is none.
Key n_shared_experts() {
  Key key{.path = "model.n_shared_experts",
          .kind = KeyKind::kInteger,
          .range = between(0, kMostExperts),
          .auto_rule = AutoRule::kDefault,
          .null_is_absent = true};
  key.set = [](ConfigDraft& draft, const JsonNode& node) { draft.shared_experts = node.integer; };
  key.get = [](const Config& c) {
    return json_of(c.model.experts.shared_width / c.model.width_of_expert());
  };
  return for_families(key, has_shared);
}

Key first_k_dense_replace() {
  Key key{.path = "model.first_k_dense_replace",
          .kind = KeyKind::kInteger,
          .range = at_least(0),
          .auto_rule = AutoRule::kDefault,
          .null_is_absent = true};
  key.set = [](ConfigDraft& draft, const JsonNode& node) {
    draft.first_dense_layers = node.integer;
  };
  key.get = [](const Config& c) {
    const std::vector<bool>& layers = c.model.expert_layers;
    return json_of(static_cast<std::int64_t>(std::count(layers.begin(), layers.end(), false)));
  };
  return for_families(key, has_shared);
}

/// How experts are chosen: among all, or among those of the best groups.
Key topk_method() {
  constexpr const char* kGroups = "group_limited_greedy";
  Key key{.path = "model.topk_method", .kind = KeyKind::kString, .choices = {"greedy", kGroups}};
  key.auto_rule = AutoRule::kDefault;
  key.null_is_absent = true;
  key.set = [](ConfigDraft& draft, const JsonNode& node) {
    draft.chooses_groups = node.is_text(kGroups);
  };
  key.get = [](const Config& c) {
    return json_quote(c.model.experts.groups > 1 ? kGroups : "greedy");
  };
  return for_families(key, names_choice);
}

/// Makes the key of a number of groups, which null sets to one.
Key groups(const char* name, std::int64_t ExpertsSpec::*member) {
  return for_families(null_is_default(field("model." + std::string(name), between(1, kMostExperts),
                                            of_experts(member))),
                      has_shared);
}

}  // namespace

std::vector<Key> experts_keys() {
  std::vector<Key> keys = spelled("num_local_experts", has_experts, [](const std::string& name) {
    return field("model." + name, between(1, kMostExperts), of_experts(&ExpertsSpec::count));
  });
  const auto add = [&](const Key& key, const FamilyTest& has) {
    keys.push_back(for_families(key, has));
  };
  add(field("model.num_experts_per_tok", between(1, kMostExperts),
            of_experts(&ExpertsSpec::per_token)),
      has_experts);
  add(field("model.norm_topk_prob", {}, of_experts(&ExpertsSpec::normalised)), has_normalised_key);
  add(kModel.field("moe_intermediate_size", between(1, kLargestSize), &ModelSpec::expert_width),
      has_expert_width);
  add(kModel.field("swiglu_limit", above(0), &ModelSpec::feed_forward_limit), has_limit);
  add(field("model.routed_scaling_factor", above(0), of_experts(&ExpertsSpec::scale)), has_shared);
  add(field("model.moe_router_bias_update_rate", at_least(0),
            of_experts(&ExpertsSpec::bias_update_rate)),
      has_balancing_bias);
  for (const Key& key : {n_shared_experts(), first_k_dense_replace(), topk_method(),
                         groups("n_group", &ExpertsSpec::groups),
                         groups("topk_group", &ExpertsSpec::chosen_groups)}) {
    keys.push_back(key);
  }
  keys.push_back(mlp_only_layers());
  keys.push_back(decoder_sparse_step());
  // Without it transformers computes no auxiliary loss, in training either.
  // DeepSeek-V2's class has none at all, so that its coefficient is 0 unless a run says otherwise.
  add(kModel.field("output_router_logits", {}, &ModelSpec::adds_balance_loss), has_experts);
  add(field("model.router_aux_loss_coef", at_least(0),
            of_experts(&ExpertsSpec::balance_coefficient)),
      has_experts);
  // The name that transformers has for it where a class of its has such a loss; a loss of a
  // softmax.
  add(field("model.router_z_loss_coef", at_least(0), of_experts(&ExpertsSpec::z_coefficient)),
      [](const Family& family) { return has_experts(family) && !has_balancing_bias(family); });
  return keys;
}

}  // namespace dstrain
