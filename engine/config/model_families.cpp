#include "engine/config/model_families.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "engine/config/arch/family.h"
#include "engine/config/longrope_keys.h"

namespace dstrain {
namespace {

void derive_sizes(ConfigDraft& draft, const WrittenKeys& written) {
  ModelSpec& m = draft.config.model;
  if (draft.embedding_width.value_or(m.hidden_size) != m.hidden_size) {
    throw_config_error(
        written.where("model.word_embed_proj_dim"), "model.word_embed_proj_dim",
        fmt::format("{} is not hidden_size {}: projections between embeddings and blocks, which "
                    "opt-350m has, are not in this version",
                    *draft.embedding_width, m.hidden_size));
  }
  const std::string heads_key = key_path(m, "num_attention_heads");
  if (m.latent.latent_rank > 0) {
    if (m.latent.rotated_dim % 2 != 0) {
      throw_config_error(
          written.where("model.qk_rope_head_dim"), "model.qk_rope_head_dim",
          fmt::format("rotary positions need an even number, found {}", m.latent.rotated_dim));
    }
    if (m.latent.value_dim > m.latent.plain_dim + m.latent.rotated_dim) {
      throw_config_error(written.where("model.v_head_dim"), "model.v_head_dim",
                         fmt::format("{} is more than a head of keys has (qk_nope_head_dim {} + "
                                     "qk_rope_head_dim {}), which is not in this version",
                                     m.latent.value_dim, m.latent.plain_dim, m.latent.rotated_dim));
    }
    m.head_dim = m.latent.plain_dim + m.latent.rotated_dim;
  }
  if (m.head_dim == 0) {
    if (m.hidden_size % m.num_heads != 0) {
      throw_config_error(written.where(heads_key), heads_key,
                         fmt::format("{} heads do not divide {} {}", m.num_heads,
                                     family_of(m).key("hidden_size"), m.hidden_size));
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
    m.intermediate_size = kFeedForwardTimes * m.hidden_size;
    draft.derived["model.n_inner"] = "4 × n_embd";
  }
}

/// Takes a number from rope_parameters that also has a key of its own; the two must not contradict
/// each other.
void take_from_rope_parameters(ConfigDraft& draft,
                               const WrittenKeys& written,
                               const char* name,
                               std::optional<double> said,
                               double& value) {
  if (!said) return;
  const std::string key = "model." + family_of(draft.config.model).key(name);
  if (written.has(key) && value != *said) {
    throw_config_error(
        written.where(key), key,
        fmt::format("{} contradicts rope_parameters.{} {}: leave one out", value, name, *said));
  }
  value = *said;
  draft.derived[key] = "rope_parameters";
}

void check_rotated_part(const ModelSpec& m, const WrittenKeys& written) {
  if (m.latent.latent_rank == 0 && m.rotated_part == 1.0 && m.head_dim % 2 != 0) {
    throw_config_error(
        written.where("model.head_dim"), "model.head_dim",
        fmt::format("rotary positions need an even head size, found {}", m.head_dim));
  }
  const std::int64_t dims = m.rotated_dims();
  if (dims < 2 || dims > m.head_dim || dims % 2 != 0) {
    const std::string key = "model." + family_of(m).key("partial_rotary_factor");
    throw_config_error(written.where(key), key,
                       fmt::format("{} of heads of {} are {} numbers, which must be even, at least "
                                   "2 and at most the head",
                                   m.rotated_part, m.head_dim, dims));
  }
}

void finish_rope(ConfigDraft& draft, const WrittenKeys& written) {
  ModelSpec& m = draft.config.model;
  if (m.position != PositionKind::kRope) return;
  const std::optional<RopeBlock>& newer = draft.rope_parameters;
  if (draft.rope_scaling && newer && draft.rope_scaling->scaling != newer->scaling) {
    throw_config_error(written.where("model.rope_parameters"), "model.rope_parameters",
                       "contradicts model.rope_scaling: leave one out");
  }
  if (draft.rope_scaling) m.rope_scaling = draft.rope_scaling->scaling;
  if (newer) {
    draft.derived["model.rope_scaling"] = "rope_parameters";
    m.rope_scaling = newer->scaling;
    take_from_rope_parameters(draft, written, "rope_theta", newer->theta, m.rope_theta);
    if (newer->rotated_part && !family_of(m).has_rotated_part_key && *newer->rotated_part != 1.0) {
      throw_config_error(written.where("model.rope_parameters"), "model.rope_parameters",
                         "rotating a part of each head is not what " + m.model_type + " does");
    }
    take_from_rope_parameters(draft, written, "partial_rotary_factor", newer->rotated_part,
                              m.rotated_part);
    if (newer->by_layer) {
      const ModelSpec& base = family_of(m).base;
      const double usual = base.window_rope_theta > 0.0 ? base.window_rope_theta : base.rope_theta;
      take_from_rope_parameters(draft, written, "rope_local_base_freq",
                                newer->window_theta.value_or(usual), m.window_rope_theta);
    }
  }
  if (m.latent.latent_rank == 0) m.rope_scaling.score_growth = 0.0;
  if (m.window_rope_theta == m.rope_theta) m.window_rope_theta = 0.0;
  check_rotated_part(m, written);
  if (m.rope_scaling.kind == RopeScalingKind::kLongRope) {
    finish_longrope(draft, written, newer ? "model.rope_parameters" : "model.rope_scaling");
  }
}

/// All layers except those whose number, counted from 1, is a multiple of `every`.
std::vector<bool> all_but_every(std::int64_t every, std::int64_t layers) {
  std::vector<bool> pattern;
  for (std::int64_t layer = 1; layer <= layers; ++layer)
    pattern.push_back(layer % every != 0);
  return pattern;
}

void settle_rotary_layers(ConfigDraft& draft, const WrittenKeys& written) {
  ModelSpec& m = draft.config.model;
  const std::int64_t every = family_of(m).unrotated_layer_every;
  if (every == 0) return;
  const auto layers = static_cast<std::size_t>(m.num_layers);
  if (draft.rotary_layers.empty()) {
    m.rotary_layers = all_but_every(draft.unrotated_layer_every.value_or(every), m.num_layers);
    draft.derived["model.no_rope_layers"] = "no_rope_layer_interval";
    return;
  }
  if (draft.rotary_layers.size() < layers) {
    throw_config_error(
        written.where("model.no_rope_layers"), "model.no_rope_layers",
        fmt::format("has {} entries, but there are {} layers", draft.rotary_layers.size(), layers));
  }
  m.rotary_layers = draft.rotary_layers;
  m.rotary_layers.resize(layers);
}

/// Reads DeepSeek's keys other than the number and width of its experts.
void settle_shared_experts(ConfigDraft& draft, const WrittenKeys& written) {
  ModelSpec& m = draft.config.model;
  const Family& family = family_of(m);
  m.experts.shared_width =
      draft.shared_experts.value_or(family.default_shared_experts) * m.width_of_expert();
  const std::int64_t dense = draft.first_dense_layers.value_or(family.default_dense_layers);
  if (dense > 0) {
    for (std::int64_t layer = 0; layer < m.num_layers; ++layer)
      m.expert_layers.push_back(layer >= dense);
  }
  ExpertsSpec& experts = m.experts;
  if (!draft.chooses_groups && !experts.balancing_bias) {
    experts.groups = experts.chosen_groups = 1;
    return;
  }
  if (experts.count % experts.groups != 0) {
    throw_config_error(written.where("model.n_group"), "model.n_group",
                       fmt::format("{} groups do not divide {} experts of {}", experts.groups,
                                   experts.count, key_path(m, "num_local_experts")));
  }
  if (experts.group_score == GroupScore::kTwoLargest && experts.count / experts.groups < 2) {
    throw_config_error(written.where("model.n_group"), "model.n_group",
                       fmt::format("{} groups of {} experts have one each, and a group counts by "
                                   "the sum of its two best",
                                   experts.groups, experts.count));
  }
  if (experts.chosen_groups > experts.groups) {
    throw_config_error(written.where("model.topk_group"), "model.topk_group",
                       fmt::format("{} is more than the {} groups of model.n_group",
                                   experts.chosen_groups, experts.groups));
  }
  if (experts.per_token > experts.count / experts.groups * experts.chosen_groups) {
    throw_config_error(
        written.where("model.num_experts_per_tok"), "model.num_experts_per_tok",
        fmt::format("{} is more than the experts of {} groups of {}", experts.per_token,
                    experts.chosen_groups, experts.count / experts.groups));
  }
}

/// Which layers have experts, and whether a token can choose as many as it should.
void settle_experts(ConfigDraft& draft, const WrittenKeys& written) {
  ModelSpec& m = draft.config.model;
  if (m.experts.count == 0) return;
  if (m.experts.per_token > m.experts.count) {
    throw_config_error(written.where("model.num_experts_per_tok"), "model.num_experts_per_tok",
                       fmt::format("{} is more than the {} experts of {}", m.experts.per_token,
                                   m.experts.count, key_path(m, "num_local_experts")));
  }
  if (family_of(m).has_shared_expert_keys) {
    settle_shared_experts(draft, written);
    return;
  }
  const std::int64_t every = draft.experts_every.value_or(1);
  if (every == 1 && draft.dense_layers.empty()) return;
  for (std::int64_t layer = 1; layer <= m.num_layers; ++layer)
    m.expert_layers.push_back(layer % every == 0);
  if (every > 1) draft.derived["model.mlp_only_layers"] = "decoder_sparse_step";
  for (const std::int64_t layer : draft.dense_layers) {
    if (layer >= m.num_layers) {
      throw_config_error(
          written.where("model.mlp_only_layers"), "model.mlp_only_layers",
          fmt::format("names layer {}, but there are {}, counted from 0", layer, m.num_layers));
    }
    m.expert_layers[static_cast<std::size_t>(layer)] = false;
  }
}

/// The layers that have the window, where the family says so layer by layer.
void settle_window_by_layer(ConfigDraft& draft, const WrittenKeys& written) {
  ModelSpec& m = draft.config.model;
  const Family& family = family_of(m);
  const auto layers = static_cast<std::size_t>(m.num_layers);
  if (m.window_rope_theta > 0.0 && !draft.sliding_window) {
    throw_config_error(written.where("model.sliding_window"), "model.sliding_window",
                       "must be a number of positions: layers with a window rotate otherwise");
  }
  if (!draft.uses_sliding_window || !draft.sliding_window) return;
  m.attention_window = *draft.sliding_window;
  if (draft.layer_has_window.empty()) {
    const std::int64_t every = draft.full_layer_every.value_or(family.full_layer_every);
    m.windowed_layers = every > 0 ? all_but_every(every, m.num_layers)
                                  : std::vector<bool>(layers, m.rotary_layers.empty());
    for (std::size_t layer = 0; layer < m.rotary_layers.size(); ++layer)
      m.windowed_layers[layer] = !m.rotary_layers[layer];
    draft.derived["model.layer_types"] = "the family's pattern";
  } else if (draft.layer_has_window.size() == layers) {
    m.windowed_layers = draft.layer_has_window;
  } else {
    throw_config_error(
        written.where("model.layer_types"), "model.layer_types",
        fmt::format("names {} layers, but there are {}", draft.layer_has_window.size(), layers));
  }
}

/// Of the models that have a key for it, the published ones do not write it: those with the second
/// generation's vocabulary or its weight of another loss have unit rows.
void settle_head(ConfigDraft& draft, const WrittenKeys& written) {
  constexpr std::int64_t kVocabularyOfBaichuan2 = 125696;
  ModelSpec& m = draft.config.model;
  if (!family_of(m).has_unit_head_key) return;
  if (!written.has("model.norm_head")) {
    m.unit_head = m.vocab_size == kVocabularyOfBaichuan2 || written.mentions("model.z_loss_weight");
    draft.derived["model.norm_head"] = "vocab_size and z_loss_weight";
  }
  if (m.unit_head && m.tied_embeddings) {
    throw_config_error(
        written.where("model.tie_word_embeddings"), "model.tie_word_embeddings",
        "true is refused: a table whose rows count with length one as a head, and as they are as "
        "an embedding (model.norm_head), is not in this version");
  }
}

/// The window that the model has, from the keys of its family.
void settle_window(ConfigDraft& draft, const WrittenKeys& written) {
  ModelSpec& m = draft.config.model;
  if (is_by_layer(family_of(m).window)) {
    settle_window_by_layer(draft, written);
    return;
  }
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

void check_sequence_length(ConfigDraft& draft, const WrittenKeys& written) {
  const ModelSpec& m = draft.config.model;
  const std::int64_t longest = m.max_positions;
  const std::string key = key_path(m, "max_position_embeddings");
  if (longest == 0) {
    throw_config_error(
        written.where(key), key,
        fmt::format("missing: write the longest sequence, or write it as {} where positions are "
                    "ALiBi's (13 B)",
                    family_of(m).alibi_length_key));
  }
  std::int64_t& sequence = draft.config.data.sequence_length;
  if (sequence == 0) {
    sequence = longest;
    draft.derived["data.sequence_length"] = "the model's longest sequence";
  }
  if (sequence > longest) {
    throw_config_error(written.where("data.sequence_length"), "data.sequence_length",
                       fmt::format("{} is longer than the {} positions of the model ({})", sequence,
                                   longest, key));
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
  draft.uses_sliding_window = family.window != WindowKeys::kNone && !is_switched(family.window);
  draft.sliding_window = family.default_window;
  draft.first_window_layer = family.default_first_window_layer;
}

void finish_model(ConfigDraft& draft, const WrittenKeys& written, ConfigProblems& problems) {
  if (problems.spoil("model.model_type")) return;
  const bool has_sizes = !problems.spoil_any(
      {"model.hidden_size", "model.n_embd", "model.num_attention_heads", "model.n_head",
       "model.num_key_value_heads", "model.head_dim", "model.intermediate_size",
       "model.moe_intermediate_size", "model.n_inner", "model.ffn_dim", "model.kv_lora_rank",
       "model.q_lora_rank", "model.qk_nope_head_dim", "model.qk_rope_head_dim",
       "model.v_head_dim"});
  if (!problems.spoil_any({"model.vocab_size", "model.norm_head", "model.tie_word_embeddings"})) {
    problems.attempt([&] { settle_head(draft, written); });
  }
  const bool derived = has_sizes && problems.attempt([&] { derive_sizes(draft, written); });
  if (derived && !problems.spoil_any(
                     {"model.rope_scaling", "model.rope_parameters", "model.rope_theta",
                      "model.rope_local_base_freq", "model.partial_rotary_factor",
                      "model.max_position_embeddings", "model.original_max_position_embeddings"})) {
    problems.attempt([&] { finish_rope(draft, written); });
  }
  if (!problems.spoil_any({"model.num_hidden_layers", "model.num_local_experts",
                           "model.num_experts", "model.num_experts_per_tok",
                           "model.n_routed_experts", "model.n_group", "model.topk_group",
                           "model.topk_method", "model.n_shared_experts",
                           "model.first_k_dense_replace", "model.moe_intermediate_size",
                           "model.decoder_sparse_step", "model.mlp_only_layers"})) {
    problems.attempt([&] { settle_experts(draft, written); });
  }
  const bool has_lengths =
      !problems.spoil_any({"data.sequence_length", "model.max_position_embeddings",
                           "model.n_positions", "model.seq_length", "model.model_max_length"}) &&
      problems.attempt([&] { check_sequence_length(draft, written); });
  if (has_lengths &&
      !problems.spoil_any({"model.sliding_window", "model.use_sliding_window",
                           "model.max_window_layers", "model.num_hidden_layers",
                           "model.layer_types", "model.sliding_window_pattern",
                           "model.no_rope_layers", "model.no_rope_layer_interval"})) {
    problems.attempt([&] {
      settle_rotary_layers(draft, written);
      settle_window(draft, written);
    });
  }
}

}  // namespace dstrain
