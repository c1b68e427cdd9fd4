#include "engine/config/model_families.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "engine/config/arch/family.h"

namespace dstrain {
namespace {

/// Far beyond any model's, and an integer of 64 bits.
constexpr double kMostOfRope = 1e12;

double rope_number(const std::string& path, const JsonNode& block, const char* name) {
  const JsonNode* node = block.find(name);
  if (node == nullptr) {
    throw_config_error(block.where, path, fmt::format("\"{}\" is missing", name));
  }
  // Written so that a NaN is refused too.
  if (!node->is(JsonNode::Kind::kNumber) || !(node->number > 0.0 && node->number <= kMostOfRope)) {
    throw_config_error(node->where, path + "." + name,
                       fmt::format("must be a number greater than 0 and at most {:g}, found {}",
                                   kMostOfRope, node->describe()));
  }
  return node->number;
}

std::string rope_type(const std::string& path, const JsonNode& block) {
  const JsonNode* node = block.find("rope_type");
  if (node == nullptr) node = block.find("type");
  if (node == nullptr) return "default";
  if (!node->is_text("default") && !node->is_text("llama3")) {
    throw_config_error(node->where, path,
                       fmt::format("rope_type {} is not in this version yet; there are \"default\" "
                                   "and \"llama3\"",
                                   node->dump()));
  }
  return node->text;
}

void derive_sizes(ConfigDraft& draft, const WrittenKeys& written) {
  ModelSpec& m = draft.config.model;
  const bool gpt2 = has_gpt2_keys(m);
  const std::string heads_key = gpt2 ? "model.n_head" : "model.num_attention_heads";
  const std::string width_key = gpt2 ? "n_embd" : "hidden_size";
  if (m.head_dim == 0) {
    if (m.hidden_size % m.num_heads != 0) {
      throw_config_error(
          written.where(heads_key), heads_key,
          fmt::format("{} heads do not divide {} {}", m.num_heads, width_key, m.hidden_size));
    }
    m.head_dim = m.hidden_size / m.num_heads;
    draft.derived["model.head_dim"] = "hidden_size / num_attention_heads";
  }
  if (m.num_key_value_heads == 0) {
    if (family_of(m).needs_key_value_heads && !written.mentions("model.num_key_value_heads")) {
      throw_config_error(written.where("model.num_key_value_heads"), "model.num_key_value_heads",
                         "missing: write it, or null for as many as attention heads");
    }
    m.num_key_value_heads = m.num_heads;
    draft.derived["model.num_key_value_heads"] = "num_attention_heads";
  }
  if (m.num_heads % m.num_key_value_heads != 0) {
    throw_config_error(written.where("model.num_key_value_heads"), "model.num_key_value_heads",
                       fmt::format("{} does not divide num_attention_heads {}",
                                   m.num_key_value_heads, m.num_heads));
  }
  if (m.intermediate_size == 0) {
    m.intermediate_size = 4 * m.hidden_size;
    draft.derived["model.n_inner"] = "4 × n_embd";
  }
}

void finish_rope(ConfigDraft& draft, const WrittenKeys& written) {
  ModelSpec& m = draft.config.model;
  if (m.position != PositionKind::kRope) return;
  if (m.head_dim % 2 != 0) {
    throw_config_error(
        written.where("model.head_dim"), "model.head_dim",
        fmt::format("rotary positions need an even head size, this is {}", m.head_dim));
  }
  if (draft.rope_scaling && draft.rope_parameters &&
      *draft.rope_scaling != *draft.rope_parameters) {
    throw_config_error(written.where("model.rope_parameters"), "model.rope_parameters",
                       "contradicts model.rope_scaling: leave one out");
  }
  if (draft.rope_parameters) draft.derived["model.rope_scaling"] = "rope_parameters";
  if (draft.rope_scaling || draft.rope_parameters) {
    m.rope_scaling = draft.rope_scaling ? *draft.rope_scaling : *draft.rope_parameters;
  }
  if (!draft.rope_parameters_theta) return;
  if (written.has("model.rope_theta") && m.rope_theta != *draft.rope_parameters_theta) {
    throw_config_error(written.where("model.rope_theta"), "model.rope_theta",
                       fmt::format("{} contradicts rope_parameters.rope_theta {}: leave one out",
                                   m.rope_theta, *draft.rope_parameters_theta));
  }
  m.rope_theta = *draft.rope_parameters_theta;
  draft.derived["model.rope_theta"] = "rope_parameters";
}

/// The window that the model has, from the keys of its family.
void settle_window(ConfigDraft& draft, const WrittenKeys& written) {
  ModelSpec& m = draft.config.model;
  const std::int64_t first = std::max<std::int64_t>(0, draft.first_window_layer.value_or(0));
  if (draft.uses_sliding_window && draft.sliding_window && first < m.num_layers) {
    m.attention_window = *draft.sliding_window;
    m.first_window_layer = first;
  }
  for (std::size_t layer = 0; layer < draft.layer_has_window.size(); ++layer) {
    const bool expected = m.window_of_layer(static_cast<std::int64_t>(layer)) > 0;
    if (draft.layer_has_window[layer] != expected) {
      throw_config_error(
          written.where("model.layer_types"), "model.layer_types",
          fmt::format("layer {} is \"{}\", but by the model's other keys it has {}: windows are "
                      "read from sliding_window, use_sliding_window and max_window_layers",
                      layer, expected ? "full_attention" : "sliding_attention",
                      expected ? "a window" : "none"));
    }
  }
}

/// A window as long as the training sequences changes nothing; a shorter one would.
void refuse_biting_window(const ConfigDraft& draft, const WrittenKeys& written) {
  const ModelSpec& m = draft.config.model;
  const std::int64_t sequence = draft.config.data.sequence_length;
  if (m.attention_window == 0 || m.attention_window >= sequence) return;
  throw_config_error(
      written.where("model.sliding_window"), "model.sliding_window",
      fmt::format(
          "a window of {} positions would cut sequences of {}, and training with a window shorter "
          "than the sequences is not in this version yet: {} or keep to shorter sequences",
          m.attention_window, sequence,
          family_of(m).window == WindowKeys::kSwitched ? "set use_sliding_window to false"
                                                       : "set sliding_window to null"));
}

void check_sequence_length(ConfigDraft& draft, const WrittenKeys& written) {
  const std::int64_t longest = draft.config.model.max_positions;
  std::int64_t& sequence = draft.config.data.sequence_length;
  if (sequence == 0) {
    sequence = longest;
    draft.derived["data.sequence_length"] = "the model's longest sequence";
  }
  if (sequence > longest) {
    throw_config_error(
        written.where("data.sequence_length"), "data.sequence_length",
        fmt::format("{} is longer than the {} positions of the model ({})", sequence, longest,
                    has_gpt2_keys(draft.config.model) ? "model.n_positions"
                                                      : "model.max_position_embeddings"));
  }
}

}  // namespace

std::vector<std::string> model_families() {
  std::vector<std::string> names;
  for (const Family& family : families())
    names.push_back(family.model_type());
  return names;
}

void set_model_family(ConfigDraft& draft, const std::string& model_type) {
  const Family& family = family_of(model_type);
  draft.config.model = family.base;
  draft.uses_sliding_window = family.window == WindowKeys::kSize;
  draft.sliding_window = family.default_window;
  draft.first_window_layer = family.default_first_window_layer;
}

RopeScaling read_rope_scaling(const std::string& path,
                              const JsonNode& node,
                              std::optional<double>* theta) {
  if (!node.is(JsonNode::Kind::kObject)) {
    throw_config_error(node.where, path, "must be an object, found " + node.describe());
  }
  const std::vector<std::string> known = {"rope_type",        "type",
                                          "factor",           "low_freq_factor",
                                          "high_freq_factor", "original_max_position_embeddings",
                                          "rope_theta"};
  for (const JsonMember& member : node.members) {
    const bool theta_here = member.key != "rope_theta" || theta != nullptr;
    if (std::find(known.begin(), known.end(), member.key) == known.end() || !theta_here) {
      throw_config_error(member.where, path + "." + member.key, "unknown key");
    }
  }
  if (theta != nullptr && node.find("rope_theta") != nullptr) {
    *theta = rope_number(path, node, "rope_theta");
  }
  if (rope_type(path, node) == "default") return {};
  const RopeScaling scaling{
      .factor = rope_number(path, node, "factor"),
      .low_frequency_factor = rope_number(path, node, "low_freq_factor"),
      .high_frequency_factor = rope_number(path, node, "high_freq_factor"),
      .original_max_positions =
          std::llround(rope_number(path, node, "original_max_position_embeddings")),
  };
  if (scaling.high_frequency_factor <= scaling.low_frequency_factor) {
    throw_config_error(node.where, path, "high_freq_factor must be greater than low_freq_factor");
  }
  return scaling;
}

std::string rope_scaling_shape(bool theta) {
  const std::string positive =
      fmt::format(R"({{"type": "number", "exclusiveMinimum": 0, "maximum": {:.0f}}})", kMostOfRope);
  const std::string factors = fmt::format(
      R"({{"required": ["factor", "low_freq_factor", "high_freq_factor",
                        "original_max_position_embeddings"],
           "properties": {{"factor": {0}, "low_freq_factor": {0}, "high_freq_factor": {0},
                           "original_max_position_embeddings": {0}}}}})",
      positive);
  const std::string names = R"({"enum": ["default", "llama3"]})";
  return fmt::format(
      R"({{"type": "object", "additionalProperties": false,
           "properties": {{"rope_type": {0}, "type": true, "factor": true, "low_freq_factor": true,
                           "high_freq_factor": true, "original_max_position_embeddings": true{2}}},
           "if": {{"required": ["rope_type"]}},
           "then": {{"if": {{"properties": {{"rope_type": {{"const": "llama3"}}}}}}, "then": {1}}},
           "else": {{"properties": {{"type": {0}}},
                     "if": {{"required": ["type"], "properties": {{"type": {{"const": "llama3"}}}}}},
                     "then": {1}}}}})",
      names, factors, theta ? ", \"rope_theta\": " + positive : "");
}

std::string rope_scaling_json(const RopeScaling& scaling) {
  if (scaling == RopeScaling{}) return "";
  return fmt::format(
      R"({{"rope_type": "llama3", "factor": {}, "low_freq_factor": {}, "high_freq_factor": {}, )"
      R"("original_max_position_embeddings": {}}})",
      scaling.factor, scaling.low_frequency_factor, scaling.high_frequency_factor,
      scaling.original_max_positions);
}

void finish_model(ConfigDraft& draft, const WrittenKeys& written, ConfigProblems& problems) {
  if (problems.spoil("model.model_type")) return;
  const bool has_sizes = !problems.spoil_any(
      {"model.hidden_size", "model.n_embd", "model.num_attention_heads", "model.n_head",
       "model.num_key_value_heads", "model.head_dim", "model.intermediate_size", "model.n_inner"});
  const bool derived = has_sizes && problems.attempt([&] { derive_sizes(draft, written); });
  if (derived &&
      !problems.spoil_any({"model.rope_scaling", "model.rope_parameters", "model.rope_theta"})) {
    problems.attempt([&] { finish_rope(draft, written); });
  }
  const bool has_lengths =
      !problems.spoil_any(
          {"data.sequence_length", "model.max_position_embeddings", "model.n_positions"}) &&
      problems.attempt([&] { check_sequence_length(draft, written); });
  if (has_lengths && !problems.spoil_any({"model.sliding_window", "model.use_sliding_window",
                                          "model.max_window_layers", "model.num_hidden_layers",
                                          "model.layer_types"})) {
    problems.attempt([&] {
      settle_window(draft, written);
      refuse_biting_window(draft, written);
    });
  }
}

}  // namespace dstrain
