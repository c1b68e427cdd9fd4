#include "engine/config/arch/architecture.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "engine/config/arch/family.h"

namespace dstrain {
namespace {

AttentionSpec attention_of(const ModelSpec& model, std::int64_t layer) {
  AttentionSpec attention{.heads = model.num_heads,
                          .key_value_heads = model.num_key_value_heads,
                          .head_dim = model.head_dim,
                          .qkv_bias = model.qkv_bias,
                          .output_bias = model.attention_output_bias,
                          .query_key_norm = family_of(model).query_key_norm,
                          .falls = model.position == PositionKind::kAlibi,
                          .window = model.window_of_layer(layer),
                          .cap = model.attention_cap,
                          .sinks = family_of(model).has_sinks};
  if (model.query_scalar > 0.0 && model.query_scalar != static_cast<double>(model.head_dim)) {
    attention.scale = static_cast<float>(1.0 / std::sqrt(model.query_scalar));
  }
  if (model.latent.latent_rank > 0) {
    attention.latent = model.latent;
    if (const RopeScaling& scaling = model.rope_scaling; scaling.score_growth > 0.0) {
      const double growth =
          1.0 + 0.1 * scaling.score_growth * std::log(std::max(1.0, scaling.factor));
      attention.scale =
          static_cast<float>(growth * growth / std::sqrt(static_cast<double>(model.head_dim)));
    }
  }
  if (model.rotates(layer)) {
    const bool scales = attention.window == 0 || !family_of(model).scales_full_layers_only;
    const bool has_own_theta = attention.window > 0 && model.window_rope_theta > 0.0;
    attention.rotary =
        RotarySpec{.dims = model.rotated_dims(),
                   .theta = has_own_theta ? model.window_rope_theta : model.rope_theta,
                   .scaling = scales ? model.rope_scaling : RopeScaling{}};
  }
  return attention;
}

FeedForwardSpec feed_forward_of(const ModelSpec& model, std::int64_t layer) {
  FeedForwardSpec feed_forward{.width = model.intermediate_size,
                               .activation = model.activation,
                               .gated = model.gated_mlp,
                               .bias = model.mlp_bias,
                               .limit = model.feed_forward_limit};
  if (model.has_experts(layer)) {
    feed_forward.experts = model.experts;
    feed_forward.width = model.width_of_expert();
    if (!model.adds_balance_loss) feed_forward.experts->balance_coefficient = 0.0F;
  }
  return feed_forward;
}

}  // namespace

Architecture::Architecture(const ModelSpec& model)
    : vocab_size(model.vocab_size),
      hidden_size(model.hidden_size),
      learned_positions(model.position == PositionKind::kLearned
                            ? model.max_positions + family_of(model).first_position_row
                            : 0),
      first_position(family_of(model).first_position_row),
      embedding_norm(family_of(model).normalizes_embeddings),
      tied_embeddings(model.tied_embeddings && !model.scores),
      scores(model.scores),
      values(model.values),
      unit_head(model.unit_head && !model.scores),
      embedding_scale(family_of(model).scales_embeddings
                          ? static_cast<float>(std::sqrt(static_cast<double>(model.hidden_size)))
                          : 1.0F),
      logit_cap(model.logit_cap),
      deviation(model.initializer_range),
      final_norm{.kind = model.norm, .epsilon = model.norm_epsilon} {
  const float residual_scale = model.scaled_residual_init
                                   ? 1.0F / std::sqrt(2.0F * static_cast<float>(model.num_layers))
                                   : 1.0F;
  for (std::int64_t layer = 0; layer < model.num_layers; ++layer) {
    layers.push_back({.attention = attention_of(model, layer),
                      .feed_forward = feed_forward_of(model, layer),
                      .norm = final_norm,
                      .norm_placement = family_of(model).norm_placement,
                      .parallel_branches = model.parallel_branches,
                      .deviation = model.initializer_range,
                      .residual_deviation = model.initializer_range * residual_scale});
  }
}

float alibi_slope(std::int64_t heads, std::int64_t head) {
  const auto of_power = [](std::int64_t power, std::int64_t index) {
    return std::exp2(-8.0 * static_cast<double>(index + 1) / static_cast<double>(power));
  };
  const auto power = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(heads)));
  return static_cast<float>(head < power ? of_power(power, head)
                                         : of_power(2 * power, 2 * (head - power)));
}

}  // namespace dstrain
