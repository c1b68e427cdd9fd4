// N new positions, P rows of the cache, C width, H query heads, K key/value heads, D head dim, F
// feed-forward width
#include "engine/generate/inference_block.h"

#include <vector>

#include "engine/model/attention.h"

namespace dstrain {

InferenceNorm InferenceNorm::declare(const InferenceShape& shape,
                                     const std::string& name,
                                     Blueprint& blueprint) {
  const std::int64_t width = shape.model.hidden_size;
  InferenceNorm norm;
  norm.kind_ = shape.model.norm;
  norm.epsilon_ = shape.model.norm_epsilon;
  norm.weight_ = blueprint.add_param({.name = name + ".weight", .shape = {width}});
  if (norm.kind_ == NormKind::kLayerNorm) {
    norm.bias_ = blueprint.add_param({.name = name + ".bias", .shape = {width}});
  }
  norm.output_ = blueprint.add_buffer(
      {"norm", {shape.chunk_tokens, width}, shape.compute, Lifetime::kScratch});
  norm.stats_ = blueprint.add_buffer(
      {"norm_stats", {shape.chunk_tokens, 2}, DType::kF32, Lifetime::kScratch});
  return norm;
}

ConstTensor InferenceNorm::forward(const ExecContext& context,
                                   Tensor residual_NC,
                                   ConstTensor delta_NC) const {
  const std::int64_t tokens = residual_NC.dim(0);
  const Tensor y_NC = context.buffer(output_).rows(0, tokens);
  context.ops.norm_forward({.kind = kind_,
                            .epsilon = epsilon_,
                            .x_NC = residual_NC,
                            .delta_NC = delta_NC,
                            .weight_C = context.param(weight_),
                            .bias_C = bias_.index < 0 ? ConstTensor{} : context.param(bias_),
                            .residual_NC = residual_NC,
                            .y_NC = y_NC,
                            .stats_N2 = context.buffer(stats_).rows(0, tokens)},
                           context.compute);
  return y_NC;
}

InferenceBlock InferenceBlock::declare(const InferenceShape& shape,
                                       std::int64_t layer,
                                       const std::string& name,
                                       Blueprint& blueprint) {
  const ModelSpec& model = shape.model;
  const std::int64_t query_width = model.num_heads * model.head_dim;
  const std::int64_t kv_width = model.num_key_value_heads * model.head_dim;
  const auto linear = [&](const std::vector<Linear::Part>& parts, std::int64_t inputs, bool bias) {
    return Linear::declare({}, parts, {.inputs = inputs, .bias = bias}, blueprint);
  };
  InferenceBlock block;
  block.window_ = model.window_of_layer(layer);
  block.model_ = model;
  block.attention_norm_ = InferenceNorm::declare(shape, name + ".attention_norm", blueprint);
  block.qkv_ = linear({{name + ".attention.query", query_width},
                       {name + ".attention.key", kv_width},
                       {name + ".attention.value", kv_width}},
                      model.hidden_size, model.qkv_bias);
  block.attention_output_ = linear({{name + ".attention.output", model.hidden_size}}, query_width,
                                   model.attention_output_bias);
  block.mlp_norm_ = InferenceNorm::declare(shape, name + ".mlp_norm", blueprint);
  std::vector<Linear::Part> up;
  if (model.gated_mlp) {
    up.push_back({name + ".mlp.gate", model.intermediate_size});
  }
  up.push_back({name + ".mlp.up", model.intermediate_size});
  block.up_ = linear(up, model.hidden_size, model.mlp_bias);
  block.down_ =
      linear({{name + ".mlp.down", model.hidden_size}}, model.intermediate_size, model.mlp_bias);

  const auto scratch = [&](const char* what, std::int64_t width) {
    return blueprint.add_buffer(
        {what, {shape.chunk_tokens, width}, shape.compute, Lifetime::kScratch});
  };
  block.cache_ = blueprint.add_buffer(
      {name + "/cache", {shape.positions, 2 * kv_width}, shape.compute, Lifetime::kCache});
  block.qkv_out_ = scratch("qkv", block.qkv_.outputs());
  block.heads_ = scratch("heads", query_width);
  block.pre_ = scratch("pre", block.up_.outputs());
  block.hidden_ = scratch("hidden", model.intermediate_size);
  block.delta_ = scratch("delta", model.hidden_size);
  if (model.position == PositionKind::kRope) {
    // Of one name: all blocks share them.
    const auto constant = [&](const char* what) {
      return blueprint.add_buffer(
          {what, {shape.positions, model.head_dim / 2}, DType::kF32, Lifetime::kConstant});
    };
    block.cosine_ = constant("rope_cosine");
    block.sine_ = constant("rope_sine");
  }
  return block;
}

void InferenceBlock::prepare(const ExecContext& context) const {
  if (model_.position != PositionKind::kRope) {
    return;
  }
  const Tensor cosine = context.buffer(cosine_);
  const RopeTables tables = rope_tables(model_, cosine.dim(0));
  context.device.copy_from_host(tables.cosine.data(), cosine, context.compute);
  context.device.copy_from_host(tables.sine.data(), context.buffer(sine_), context.compute);
  context.compute.synchronize();
}

ConstTensor InferenceBlock::forward(const ExecContext& context,
                                    Range positions,
                                    Tensor residual_NC,
                                    ConstTensor delta_NC) const {
  const Tensor added_NC = context.buffer(delta_).rows(0, positions.size());
  attend(context, positions, attention_norm_.forward(context, residual_NC, delta_NC), added_NC);
  feed_forward(context, mlp_norm_.forward(context, residual_NC, added_NC), added_NC);
  return added_NC;
}

void InferenceBlock::attend(const ExecContext& context,
                            Range positions,
                            ConstTensor x_NC,
                            Tensor y_NC) const {
  const std::int64_t tokens = positions.size();
  const AttentionShape shape{.batch = 1,
                             .sequence = tokens,
                             .query_heads = model_.num_heads,
                             .key_value_heads = model_.num_key_value_heads,
                             .head_dim = model_.head_dim};
  const Tensor qkv = context.buffer(qkv_out_).rows(0, tokens);
  const Tensor heads = context.buffer(heads_).rows(0, tokens);
  qkv_.forward(context, x_NC, qkv);
  if (model_.position == PositionKind::kRope) {
    context.ops.rope(shape, qkv, context.buffer(cosine_).rows(positions.begin, positions.end),
                     context.buffer(sine_).rows(positions.begin, positions.end), Pass::kForward,
                     context.compute);
  }
  context.ops.attention_cached(shape, positions.begin, window_, qkv, context.buffer(cache_), heads,
                               context.compute);
  attention_output_.forward(context, heads, y_NC);
}

void InferenceBlock::feed_forward(const ExecContext& context, ConstTensor x_NC, Tensor y_NC) const {
  const std::int64_t tokens = x_NC.dim(0);
  const Tensor pre = context.buffer(pre_).rows(0, tokens);
  const Tensor hidden_NF = context.buffer(hidden_).rows(0, tokens);
  if (model_.gated_mlp) {
    up_.forward(context, x_NC, pre);
    context.ops.gated_activation_forward(model_.activation, pre, hidden_NF, context.compute);
  } else {
    up_.forward_activated(context, model_.activation, x_NC, pre, hidden_NF);
  }
  down_.forward(context, hidden_NF, y_NC);
}

}  // namespace dstrain
