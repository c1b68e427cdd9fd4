#include "engine/config/arch/architecture.h"

#include <cmath>

#include "engine/config/arch/family.h"
#include "engine/config/arch/tensor_list.h"

namespace dstrain {
namespace {

AttentionSpec attention_of(const ModelSpec& model, std::int64_t layer) {
  AttentionSpec attention{.heads = model.num_heads,
                          .key_value_heads = model.num_key_value_heads,
                          .head_dim = model.head_dim,
                          .qkv_bias = model.qkv_bias,
                          .output_bias = model.attention_output_bias,
                          .query_key_norm = family_of(model).query_key_norm,
                          .window = model.window_of_layer(layer)};
  if (model.position == PositionKind::kRope) {
    attention.rotary = RotarySpec{.theta = model.rope_theta, .scaling = model.rope_scaling};
  }
  return attention;
}

}  // namespace

Architecture::Architecture(const ModelSpec& model)
    : vocab_size(model.vocab_size),
      hidden_size(model.hidden_size),
      learned_positions(model.position == PositionKind::kLearned ? model.max_positions : 0),
      tied_embeddings(model.tied_embeddings),
      deviation(model.initializer_range),
      final_norm{.kind = model.norm, .epsilon = model.norm_epsilon} {
  const float residual_scale = model.scaled_residual_init
                                   ? 1.0F / std::sqrt(2.0F * static_cast<float>(model.num_layers))
                                   : 1.0F;
  for (std::int64_t layer = 0; layer < model.num_layers; ++layer) {
    layers.push_back({.attention = attention_of(model, layer),
                      .feed_forward = {.width = model.intermediate_size,
                                       .activation = model.activation,
                                       .gated = model.gated_mlp,
                                       .bias = model.mlp_bias},
                      .norm = final_norm,
                      .norm_placement = family_of(model).norm_placement,
                      .deviation = model.initializer_range,
                      .residual_deviation = model.initializer_range * residual_scale});
  }
}

std::int64_t matmul_parameters(const Architecture& architecture, const LayerSpec& layer) {
  std::int64_t sum = 0;
  for (const TensorDecl& tensor : block_tensors(architecture, layer, "")) {
    sum += tensor.hidden_matrix ? tensor.shape.numel() : 0;
  }
  return sum;
}

double block_flops_per_token(const Architecture& architecture,
                             const LayerSpec& layer,
                             std::int64_t sequence_length) {
  return 6.0 * static_cast<double>(matmul_parameters(architecture, layer)) +
         12.0 * static_cast<double>(layer.attention.query_width()) *
             static_cast<double>(sequence_length) / 2.0;
}

}  // namespace dstrain
