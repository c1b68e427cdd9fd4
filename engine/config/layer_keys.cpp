// The keys that say what attention is: how far it reaches, and layer by layer rotation, windows and
// scores.
#include "engine/config/family_keys.h"
#include "engine/config/rope_keys.h"

namespace dstrain {
namespace {

bool has_window(const Family& family) {
  return family.window != WindowKeys::kNone;
}
bool has_window_switch(const Family& family) {
  return is_switched(family.window);
}
bool has_first_window_layer(const Family& family) {
  return family.window == WindowKeys::kSwitched;
}
bool has_window_pattern(const Family& family) {
  return family.has_window_pattern_key;
}
bool has_caps(const Family& family) {
  return family.has_cap_keys;
}
bool has_score_cap(const Family& family) {
  return family.base.attention_cap > 0.0F;
}
bool has_window_theta(const Family& family) {
  return family.scales_full_layers_only;
}
bool has_original_positions(const Family& family) {
  return family.default_original_positions > 0;
}
bool has_unrotated_layers(const Family& family) {
  return family.unrotated_layer_every > 0;
}

bool says_positions_by_length(const Family& family) {
  return !family.alibi_length_key.empty();
}

/// A longest sequence by whose key positions are of that kind.
Key length_with(const std::string& name, PositionKind kind) {
  Key key = derived_size(name.c_str(), &ModelSpec::max_positions);
  key.set = [kind](ConfigDraft& draft, const JsonNode& node) {
    draft.config.model.max_positions = node.integer.value();
    draft.config.model.position = kind;
  };
  key.get = [kind](const Config& c) {
    return c.model.position == kind ? json_of(c.model.max_positions) : "";
  };
  return key;
}

Key sliding_window() {
  Key key{.path = "model.sliding_window", .kind = KeyKind::kAny, .auto_rule = AutoRule::kDefault};
  key.shape = R"({"type": "integer", "minimum": 1, "maximum": 9223372036854775807})";
  key.null_is_value = true;  // unlimited; absent: the family's default
  key.set = [](ConfigDraft& draft, const JsonNode& node) {
    if (!node.is(JsonNode::Kind::kNull) && node.integer.value_or(0) < 1) {
      throw_config_error(node.where, "model.sliding_window",
                         "must be null or an integer of at least 1, found " + node.describe());
    }
    draft.sliding_window = node.integer;
  };
  key.get = [](const Config& c) -> std::string {
    return c.model.attention_window > 0            ? std::to_string(c.model.attention_window)
           : has_window_switch(family_of(c.model)) ? ""
                                                   : "null";
  };
  return for_families(key, has_window);
}

Key use_sliding_window() {
  Key key{.path = "model.use_sliding_window",
          .kind = KeyKind::kBool,
          .auto_rule = AutoRule::kDefault,
          .null_is_absent = true};
  key.set = [](ConfigDraft& draft, const JsonNode& node) {
    draft.uses_sliding_window = node.boolean;
  };
  key.get = [](const Config& c) { return c.model.attention_window > 0 ? "true" : ""; };
  return for_families(key, has_window_switch);
}

Key max_window_layers() {
  Key key{.path = "model.max_window_layers",
          .kind = KeyKind::kInteger,
          .auto_rule = AutoRule::kDefault,
          .null_is_absent = true};
  key.set = [](ConfigDraft& draft, const JsonNode& node) {
    draft.first_window_layer = node.integer;
  };
  key.get = [](const Config& c) {
    return c.model.attention_window > 0 ? std::to_string(c.model.first_window_layer)
                                        : std::string();
  };
  return for_families(key, has_first_window_layer);
}

/// Says which layers have the window, in families that say so layer by layer; in others it repeats
/// other keys.
Key layer_types() {
  Key key{.path = "model.layer_types",
          .kind = KeyKind::kAny,
          .status = KeyStatus::kHonoured,
          .auto_rule = AutoRule::kDefault,
          .null_is_absent = true};
  key.get = [](const Config& c) -> std::string {
    if (c.model.attention_window == 0 || !is_by_layer(family_of(c.model).window)) return "";
    std::string list;
    for (const bool slides : c.model.windowed_layers)
      list += fmt::format("{}{}", list.empty() ? "[" : ", ",
                          slides ? R"("sliding_attention")" : R"("full_attention")");
    return list + "]";
  };
  key.shape = R"({"items": {"enum": ["full_attention", "sliding_attention"]}})";
  key.set = [](ConfigDraft& draft, const JsonNode& node) {
    for (const JsonNode& item : node.items) {
      const bool slides = item.is_text("sliding_attention");
      if (!slides && !item.is_text("full_attention")) {
        throw_config_error(
            item.where, "model.layer_types",
            "must be \"full_attention\" or \"sliding_attention\", found " + item.describe());
      }
      draft.layer_has_window.push_back(slides);
    }
  };
  return for_families(key, is_rope_family);
}

/// Without layer_types, every layer whose number is a multiple of this has no window.
Key sliding_window_pattern() {
  Key key = silent("model.sliding_window_pattern", KeyKind::kInteger);
  key.range = at_least(1);
  key.set = [](ConfigDraft& draft, const JsonNode& node) { draft.full_layer_every = node.integer; };
  return for_families(key, has_window_pattern);
}

/// A list with 0 for each layer that does not rotate.
Key no_rope_layers() {
  Key key{.path = "model.no_rope_layers",
          .kind = KeyKind::kAny,
          .auto_rule = AutoRule::kDefault,
          .null_is_absent = true};
  key.shape = R"({"items": {"enum": [0, 1]}})";
  key.set = [](ConfigDraft& draft, const JsonNode& node) {
    for (const JsonNode& item : node.items) {
      const std::int64_t rotates = item.integer.value_or(-1);
      if (rotates != 0 && rotates != 1) {
        throw_config_error(
            item.where, "model.no_rope_layers",
            "must be 1 for a layer that rotates, or 0 for one that does not, found " +
                item.describe());
      }
      draft.rotary_layers.push_back(rotates == 1);
    }
  };
  key.get = [](const Config& c) -> std::string {
    std::string list;
    for (const bool rotates : c.model.rotary_layers)
      list += fmt::format("{}{}", list.empty() ? "[" : ", ", rotates ? 1 : 0);
    return list.empty() ? "" : list + "]";
  };
  return for_families(key, has_unrotated_layers);
}

Key no_rope_layer_interval() {
  Key key = silent("model.no_rope_layer_interval", KeyKind::kInteger);
  key.range = at_least(1);
  key.set = [](ConfigDraft& draft, const JsonNode& node) {
    draft.unrotated_layer_every = node.integer;
  };
  return for_families(key, has_unrotated_layers);
}

/// The rotation of layers with a window, where it differs from that of the others.
Key rope_local_base_freq() {
  Key key = kModel.field("rope_local_base_freq", above(0), &ModelSpec::window_rope_theta);
  key.get = [](const Config& c) {
    const ModelSpec& model = c.model;
    const bool is_usual = model.window_rope_theta == 0.0;
    return !is_usual                                        ? json_of(model.window_rope_theta)
           : family_of(model).base.window_rope_theta == 0.0 ? ""
                                                            : json_of(model.rope_theta);
  };
  return for_families(null_is_default(key), has_window_theta);
}

/// The largest size of a score or of a logit; null means no limit.
Key soft_cap(const std::string& name, float ModelSpec::*cap, const FamilyTest& has) {
  Key key{.path = "model." + name,
          .kind = KeyKind::kAny,
          .auto_rule = AutoRule::kDefault,
          .null_is_value = true};
  key.shape = R"({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1e30})";
  key.set = [cap, path = key.path](ConfigDraft& draft, const JsonNode& node) {
    const bool none = node.is(JsonNode::Kind::kNull);
    // Written so that a NaN is refused too.
    if (!none && !(node.is(JsonNode::Kind::kNumber) && node.number > 0.0 && node.number < 1e30)) {
      throw_config_error(
          node.where, path,
          "must be null or a number above 0 and below 1e30, found " + node.describe());
    }
    draft.config.model.*cap = none ? 0.0F : static_cast<float>(node.number);
  };
  key.get = [cap](const Config& c) -> std::string {
    if (c.model.*cap == 0.0F) return "null";
    const std::string number = json_of(c.model.*cap);  // transformers expects a decimal point
    return number.find_first_of(".e") == std::string::npos ? number + ".0" : number;
  };
  return for_families(key, has);
}

Key rope_scaling() {
  Key key{.path = "model.rope_scaling", .kind = KeyKind::kAny};
  key.shape = rope_block_shape(/*newer=*/false);
  key.set = [](ConfigDraft& draft, const JsonNode& node) {
    draft.rope_scaling =
        read_rope_block("model.rope_scaling", node, /*newer=*/false, /*by_layer=*/false);
  };
  key.get = [](const Config& c) -> std::string {
    const bool is_plain = c.model.rope_scaling.kind == RopeScalingKind::kNone;
    const bool is_usual = family_of(c.model).base.rope_scaling.kind == RopeScalingKind::kNone;
    return is_plain && !is_usual ? R"({"rope_type": "default"})"
                                 : rope_scaling_json(c.model.rope_scaling);
  };
  return for_families(null_is_default(key), has_rope_keys);
}

Key rope_parameters() {
  Key key = silent("model.rope_parameters");
  key.shape = rope_block_shape(/*newer=*/true);
  key.set = [](ConfigDraft& draft, const JsonNode& node) {
    draft.rope_parameters = read_rope_block("model.rope_parameters", node, /*newer=*/true,
                                            family_of(draft.config.model).scales_full_layers_only);
  };
  return for_families(key, has_rope_keys);
}

/// LongRoPE's; elsewhere it says nothing.
Key original_max_position_embeddings() {
  Key key{.path = "model.original_max_position_embeddings",
          .kind = KeyKind::kInteger,
          .range = between(1, kLargestSize)};
  key.set = [](ConfigDraft& draft, const JsonNode& node) {
    draft.original_positions = node.integer;
  };
  key.get = [](const Config& c) {
    const RopeScaling& scaling = c.model.rope_scaling;
    return scaling.kind == RopeScalingKind::kLongRope ? json_of(scaling.original_max_positions)
                                                      : "";
  };
  return for_families(null_is_default(key), has_original_positions);
}

}  // namespace

std::vector<Key> length_keys() {
  std::vector<Key> keys = spelled(
      "max_position_embeddings",
      [](const Family& family) {
        return has_llama_keys(family) && family.base.max_positions == 0 &&
               !says_positions_by_length(family);
      },
      [](const std::string& name) {
        return model_size(name, &ModelSpec::max_positions,
                          "the longest sequence, for example 4096");
      });
  for (Key& key : spelled(
           "max_position_embeddings",
           [](const Family& family) { return family.base.max_positions > 0; },
           [](const std::string& name) {
             return derived_size(name.c_str(), &ModelSpec::max_positions);
           })) {
    keys.push_back(std::move(key));
  }
  for (const Family& family : families()) {
    if (!says_positions_by_length(family)) continue;
    keys.push_back(for_families(length_with(family.alibi_length_key, PositionKind::kAlibi),
                                [name = family.alibi_length_key](const Family& one) {
                                  return one.alibi_length_key == name;
                                }));
  }
  // Read last, it counts where both are written.
  keys.push_back(for_families(length_with("max_position_embeddings", PositionKind::kRope),
                              says_positions_by_length));
  return keys;
}

std::vector<Key> rope_keys() {
  return {rope_scaling(),         rope_parameters(), original_max_position_embeddings(),
          rope_local_base_freq(), no_rope_layers(),  no_rope_layer_interval()};
}

std::vector<Key> window_keys() {
  return {sliding_window(), use_sliding_window(), max_window_layers(), sliding_window_pattern(),
          layer_types()};
}

std::vector<Key> score_keys() {
  return {for_families(kModel.field("query_pre_attn_scalar", above(0), &ModelSpec::query_scalar),
                       has_caps),
          soft_cap("attn_logit_softcapping", &ModelSpec::attention_cap, has_score_cap),
          soft_cap("final_logit_softcapping", &ModelSpec::logit_cap, has_caps)};
}

}  // namespace dstrain
