#include "engine/config/rope_keys.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include <fmt/format.h>

#include "engine/config/config_error.h"
#include "engine/config/longrope_keys.h"
#include "engine/config/rope_block.h"

namespace dstrain {
namespace {

struct ScalingName {
  const char* name;
  RopeScalingKind kind;
  std::vector<const char*> required;        ///< numbers
  std::vector<const char*> required_lists;  ///< of numbers
};
const std::vector<ScalingName>& scaling_names() {
  static const std::vector<ScalingName> names = {
      {"default", RopeScalingKind::kNone, {}, {}},
      {"linear", RopeScalingKind::kLinear, {"factor"}, {}},
      {"llama3",
       RopeScalingKind::kLlama3,
       {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
       {}},
      {"yarn", RopeScalingKind::kYarn, {"factor", "original_max_position_embeddings"}, {}},
      {"longrope", RopeScalingKind::kLongRope, {}, {"short_factor", "long_factor"}},
      {"su", RopeScalingKind::kLongRope, {}, {"short_factor", "long_factor"}}};  // its first name
  return names;
}

RopeScalingKind scaling_kind(const std::string& path, const JsonNode& block) {
  const JsonNode* node = block.find("rope_type");
  if (node == nullptr) node = block.find("type");
  if (node == nullptr) return RopeScalingKind::kNone;
  std::string list;
  for (const ScalingName& known : scaling_names()) {
    if (node->is_text(known.name)) return known.kind;
    list += fmt::format("{}\"{}\"", list.empty() ? "" : ", ", known.name);
  }
  throw_config_error(node->where, path,
                     fmt::format("rope_type {} is not in this version yet; expected one of {}",
                                 node->dump(), list));
}

/// The factor by which queries and keys grow (Peng et al. 2023, §3.4).
double growth(double factor, double by) {
  return factor <= 1.0 ? 1.0 : 0.1 * by * std::log(factor) + 1.0;
}

double attention_factor(const std::string& path, const JsonNode& block, double factor) {
  if (says(block, "attention_factor")) return positive(path, block, "attention_factor");
  if (says(block, "mscale") && says(block, "mscale_all_dim")) {
    return growth(factor, positive(path, block, "mscale")) /
           growth(factor, positive(path, block, "mscale_all_dim"));
  }
  return growth(factor, 1.0);
}

bool read_truncate(const std::string& path, const JsonNode& block) {
  if (!says(block, "truncate")) return true;
  const JsonNode* node = block.find("truncate");
  if (!node->is(JsonNode::Kind::kBool)) {
    throw_config_error(node->where, path + ".truncate",
                       "must be true or false, found " + node->describe());
  }
  return node->boolean;
}

RopeScaling read_scaling(const std::string& path, const JsonNode& node) {
  RopeScaling scaling{.kind = scaling_kind(path, node)};
  const auto positions = [&] {
    return std::llround(positive(path, node, "original_max_position_embeddings"));
  };
  switch (scaling.kind) {
    case RopeScalingKind::kNone:
      return scaling;
    case RopeScalingKind::kLinear:
      scaling.factor = positive(path, node, "factor");
      return scaling;
    case RopeScalingKind::kLlama3:
      scaling.factor = positive(path, node, "factor");
      scaling.low_frequency_factor = positive(path, node, "low_freq_factor");
      scaling.high_frequency_factor = positive(path, node, "high_freq_factor");
      scaling.original_max_positions = positions();
      if (scaling.high_frequency_factor <= scaling.low_frequency_factor) {
        throw_config_error(node.where, path,
                           "high_freq_factor must be greater than low_freq_factor");
      }
      return scaling;
    case RopeScalingKind::kYarn:
      scaling.factor = positive(path, node, "factor");
      scaling.original_max_positions = positions();
      scaling.fast_rotations = positive_or(path, node, "beta_fast", scaling.fast_rotations);
      scaling.slow_rotations = positive_or(path, node, "beta_slow", scaling.slow_rotations);
      scaling.whole_pairs = read_truncate(path, node);
      scaling.attention_factor = attention_factor(path, node, scaling.factor);
      if (says(node, "mscale_all_dim")) {
        scaling.score_growth = positive(path, node, "mscale_all_dim");
      }
      if (scaling.fast_rotations <= scaling.slow_rotations) {
        throw_config_error(node.where, path, "beta_fast must be greater than beta_slow");
      }
      return scaling;
    case RopeScalingKind::kLongRope:
      return read_longrope(path, node);
  }
  return scaling;
}

constexpr const char* kFull = "full_attention";
constexpr const char* kSliding = "sliding_attention";

RopeBlock read_both_kinds(const std::string& path, const JsonNode& node) {
  for (const JsonMember& member : node.members) {
    if (member.key != kFull && member.key != kSliding) {
      throw_config_error(member.where, path + "." + member.key,
                         fmt::format("unknown key; expected {} and {}", kFull, kSliding));
    }
  }
  RopeBlock full;
  if (const JsonNode* block = node.find(kFull)) {
    full = read_rope_block(path + "." + kFull, *block, /*newer=*/true, /*by_layer=*/false);
  }
  if (const JsonNode* block = node.find(kSliding)) {
    const std::string sliding_path = path + "." + kSliding;
    const RopeBlock sliding =
        read_rope_block(sliding_path, *block, /*newer=*/true, /*by_layer=*/false);
    if (sliding.scaling != RopeScaling{}) {
      throw_config_error(block->where, sliding_path, "layers with a window are not scaled here");
    }
    full.window_theta = sliding.theta;
  }
  full.by_layer = true;
  return full;
}

}  // namespace

RopeBlock read_rope_block(const std::string& path,
                          const JsonNode& node,
                          bool newer,
                          bool by_layer) {
  if (!node.is(JsonNode::Kind::kObject)) {
    throw_config_error(node.where, path, "must be an object, found " + node.describe());
  }
  if (by_layer && (node.find(kFull) != nullptr || node.find(kSliding) != nullptr)) {
    return read_both_kinds(path, node);
  }
  constexpr std::array kKnown = {"rope_type",        "type",
                                 "factor",           "low_freq_factor",
                                 "high_freq_factor", "original_max_position_embeddings",
                                 "beta_fast",        "beta_slow",
                                 "truncate",         "attention_factor",
                                 "mscale",           "mscale_all_dim",
                                 "short_factor",     "long_factor"};
  for (const JsonMember& member : node.members) {
    const bool is_newer = member.key == "rope_theta" || member.key == "partial_rotary_factor";
    const bool is_known = std::find(kKnown.begin(), kKnown.end(), member.key) != kKnown.end();
    if (!is_known && !(newer && is_newer)) {
      throw_config_error(member.where, path + "." + member.key, "unknown key");
    }
  }
  RopeBlock block;
  if (newer && says(node, "rope_theta")) block.theta = positive(path, node, "rope_theta");
  if (newer && says(node, "partial_rotary_factor")) {
    block.rotated_part = positive(path, node, "partial_rotary_factor");
  }
  block.scaling = read_scaling(path, node);
  return block;
}

std::string rope_block_shape(bool newer) {
  const std::string number =
      fmt::format(R"({{"type": "number", "exclusiveMinimum": 0, "maximum": {:.0f}}})", kMostOfRope);
  std::string names;
  std::string kinds;  // if the type is this one, it needs those keys
  std::string ends;
  for (const ScalingName& known : scaling_names()) {
    names += fmt::format("{}\"{}\"", names.empty() ? "" : ", ", known.name);
    std::string required;
    std::string properties;
    const auto require = [&](const char* name, const std::string& shape) {
      required += fmt::format("{}\"{}\"", required.empty() ? "" : ", ", name);
      properties += fmt::format("{}\"{}\": {}", properties.empty() ? "" : ", ", name, shape);
    };
    for (const char* name : known.required)
      require(name, number);
    for (const char* name : known.required_lists)
      require(name, fmt::format(R"({{"type": "array", "items": {}}})", number));
    if (required.empty()) continue;
    kinds += fmt::format(
        R"({{"if": {{"properties": {{"@": {{"const": "{}"}}}}}},
            "then": {{"required": [{}], "properties": {{{}}}}}, "else": )",
        known.name, required, properties);
    ends += "}";
  }
  kinds += "true" + ends;
  const auto with = [&](const std::string& key) {
    std::string shape = kinds;
    for (std::size_t at; (at = shape.find('@')) != std::string::npos;)
      shape.replace(at, 1, key);
    return shape;
  };
  return fmt::format(
      R"({{"type": "object", "additionalProperties": false,
           "properties": {{"rope_type": {{"enum": [{0}]}}, "type": true, "factor": true,
                           "low_freq_factor": true, "high_freq_factor": true,
                           "original_max_position_embeddings": true, "beta_fast": true,
                           "beta_slow": true, "truncate": true, "attention_factor": true,
                           "mscale": true, "mscale_all_dim": true, "short_factor": true,
                           "long_factor": true{1}}},
           "if": {{"required": ["rope_type"]}},
           "then": {2},
           "else": {{"properties": {{"type": {{"enum": [{0}]}}}},
                     "if": {{"required": ["type"]}}, "then": {3}}}}})",
      names,
      newer ? fmt::format(R"(, "rope_theta": {0}, "partial_rotary_factor": {0},
                           "full_attention": true, "sliding_attention": true)",
                          number)
            : "",
      with("rope_type"), with("type"));
}

std::string rope_scaling_json(const RopeScaling& scaling) {
  switch (scaling.kind) {
    case RopeScalingKind::kNone:
      return "";
    case RopeScalingKind::kLinear:
      return fmt::format(R"({{"rope_type": "linear", "factor": {}}})", scaling.factor);
    case RopeScalingKind::kLlama3:
      return fmt::format(R"({{"rope_type": "llama3", "factor": {}, "low_freq_factor": {}, )"
                         R"("high_freq_factor": {}, "original_max_position_embeddings": {}}})",
                         scaling.factor, scaling.low_frequency_factor,
                         scaling.high_frequency_factor, scaling.original_max_positions);
    case RopeScalingKind::kYarn:
      return fmt::format(
          R"({{"rope_type": "yarn", "factor": {}, "original_max_position_embeddings": {}, )"
          R"("beta_fast": {}, "beta_slow": {}, "truncate": {}, "attention_factor": {}{}}})",
          scaling.factor, scaling.original_max_positions, scaling.fast_rotations,
          scaling.slow_rotations, scaling.whole_pairs, scaling.attention_factor,
          scaling.score_growth > 0.0
              ? fmt::format(R"(, "mscale_all_dim": {})", scaling.score_growth)
              : "");
    case RopeScalingKind::kLongRope:
      return longrope_json(scaling);
  }
  return "";
}

}  // namespace dstrain
