#include "engine/model/attention.h"

#include <algorithm>
#include <vector>

#include "engine/model/dropout.h"
#include "engine/model/rope_tables.h"

namespace dstrain {
namespace {

/// Layers that rotate alike share tables. Returns "" for layers that rotate like the first one that
/// does.
std::string rotation_name(const Architecture& model, const RotarySpec& rotary) {
  std::vector<RotarySpec> before;
  for (const LayerSpec& layer : model.layers) {
    const std::optional<RotarySpec>& other = layer.attention.rotary;
    if (other == rotary) {
      break;
    }
    if (other && std::find(before.begin(), before.end(), *other) == before.end()) {
      before.push_back(*other);
    }
  }
  return before.empty() ? "" : std::to_string(before.size() + 1);
}

}  // namespace

Attention Attention::declare(const LayerShape& shape,
                             const std::string& name,
                             Blueprint& blueprint) {
  const AttentionSpec& spec = shape.layer.attention;
  const int ranks = shape.tensor.ranks;
  const std::int64_t head_dim = spec.head_dim;
  const std::int64_t query_heads = spec.heads / ranks;
  const std::int64_t kv_heads =
      spec.key_value_heads * shape.tensor.copies_of_heads(spec.key_value_heads) / ranks;
  const std::int64_t query_width = query_heads * head_dim;
  const std::int64_t kv_width = kv_heads * head_dim;
  Attention attention;
  attention.spec_ = spec;
  attention.first_head_ = shape.tensor.rank * query_heads;
  attention.document_positions_ = shape.document_positions;
  attention.first_sample_ = shape.first_sample;
  if (!shape.extends_cache()) {
    attention.dropout_.probability = shape.dropout.attention;
    attention.dropout_.key = dropout_key(shape.seed, shape.block, DropoutSite::kAttention);
    attention.dropout_.first_head = attention.first_head_;
  }
  attention.shape_ = {.batch = shape.batch,
                      .sequence = shape.sequence,
                      .query_heads = query_heads,
                      .key_value_heads = kv_heads,
                      .head_dim = head_dim};
  attention.qkv_ =
      Linear::declare(shape, {name + ".query", name + ".key", name + ".value"}, blueprint);
  attention.norms_ = QueryKeyNorms::declare(shape, name, query_width, kv_width, blueprint);
  attention.output_ = Linear::declare(shape, {name + ".output"}, blueprint);

  const Shape packed{shape.tokens(), query_width + 2 * kv_width};
  const Shape heads{shape.tokens(), query_width};
  const Shape per_query{shape.batch, query_heads, shape.sequence};
  const auto product = [&](const char* what, Shape extent, DType dtype) {
    return shape.add_activation(blueprint, name, what, extent, dtype, Origin::kProduct,
                                LayerKind::kAttention);
  };
  const auto scratch = [&](const char* what, Shape extent, DType dtype) {
    return shape.add_backward_buffer(
        blueprint, {what, extent, dtype, Lifetime::kScratch, LayerKind::kAttention});
  };
  attention.packed_ = product("qkv", packed, shape.compute);
  attention.heads_ = product("heads", heads, shape.compute);
  if (shape.extends_cache()) {
    attention.cache_ = blueprint.add_buffer({name + "/cache",
                                             {shape.cache_positions, 2 * kv_width},
                                             shape.compute,
                                             Lifetime::kCache,
                                             LayerKind::kAttention});
  } else {
    attention.logsumexp_ = product("logsumexp", per_query, DType::kF32);
  }
  attention.d_packed_ = scratch("d_qkv", packed, shape.compute);
  attention.d_heads_ = scratch("d_heads", heads, shape.compute);
  attention.delta_ = scratch("attention_delta", per_query, DType::kF32);
  if (spec.rotary) {
    const Shape table{shape.positions(), spec.rotary->dims / 2};
    const std::string which = rotation_name(shape.model, *spec.rotary);
    attention.cosine_ =
        blueprint.add_buffer({"rope_cosine" + which, table, DType::kF32, Lifetime::kConstant});
    attention.sine_ =
        blueprint.add_buffer({"rope_sine" + which, table, DType::kF32, Lifetime::kConstant});
  }
  if (spec.falls) {
    attention.slopes_ =
        blueprint.add_buffer({"alibi_slopes", {query_heads}, DType::kF32, Lifetime::kConstant});
  }
  return attention;
}

void Attention::prepare(const LayerContext& context) const {
  if (spec_.falls) {
    const Tensor slopes = context.buffer(slopes_);
    std::vector<float> values;
    for (std::int64_t head = 0; head < slopes.numel(); ++head) {
      values.push_back(alibi_slope(spec_.heads, first_head_ + head));
    }
    context.device.copy_from_host(values.data(), slopes, context.compute);
    context.compute.synchronize();
  }
  if (!spec_.rotary) {
    return;
  }
  const Tensor cosine = context.buffer(cosine_);
  const Tensor sine = context.buffer(sine_);
  const std::int64_t text_tokens = context.extension ? context.extension->end : cosine.dim(0);
  const RopeTables tables = rope_tables(*spec_.rotary, cosine.dim(0), text_tokens);
  context.device.copy_from_host(tables.cosine.data(), cosine, context.compute);
  context.device.copy_from_host(tables.sine.data(), sine, context.compute);
  context.compute.synchronize();
}

void Attention::forward(const LayerContext& context,
                        int slot,
                        ConstTensor x_NC,
                        Tensor y_NC) const {
  const AttentionShape shape = shape_of(context);
  const Tensor packed = context.activation(packed_, slot);
  const Tensor heads = context.activation(heads_, slot);
  qkv_.forward(context, x_NC, packed);
  norms_.forward(context, slot, packed);
  if (spec_.rotary) {
    context.ops.rope(shape, packed, context.at_positions(context.buffer(cosine_)),
                     context.at_positions(context.buffer(sine_)),
                     context.optional_buffer(document_positions_, slot), Pass::kForward,
                     context.compute);
  }
  if (context.extension) {
    context.ops.attention_cached(shape, context.extension->begin, reach_of(context, slot), packed,
                                 context.buffer(cache_), heads, context.compute);
  } else {
    context.ops.attention_forward(
        {.in = packed_attention(shape, packed, reach_of(context, slot), dropout_of(context, slot)),
         .out = heads,
         .logsumexp_BHT = context.buffer(logsumexp_, slot)},
        context.compute);
  }
  output_.forward(context, heads, y_NC);
}

AttentionReach Attention::reach_of(const LayerContext& context, int slot) const {
  return {.window = spec_.window,
          .scale = spec_.scale,
          .cap = spec_.cap,
          .document_positions = context.optional_buffer(document_positions_, slot),
          .slopes_H = context.optional_buffer(slopes_)};
}

AttentionDropout Attention::dropout_of(const LayerContext& context, int slot) const {
  AttentionDropout dropout = dropout_;
  dropout.first_sample = context.optional_buffer(first_sample_, slot);
  return dropout;
}

AttentionShape Attention::shape_of(const LayerContext& context) const {
  AttentionShape shape = shape_;
  shape.sequence = context.extension ? context.extension->size() : shape.sequence;
  return shape;
}

void Attention::backward(const LayerContext& context,
                         int slot,
                         ConstTensor dy_NC,
                         ConstTensor x_NC,
                         Tensor dx_NC,
                         const GradTarget& gradients) const {
  const Tensor packed = context.buffer(packed_, slot);
  const Tensor heads = context.buffer(heads_, slot);
  const Tensor d_packed = context.buffer(d_packed_);
  const Tensor d_heads = context.buffer(d_heads_);
  output_.backward(context, dy_NC, heads, d_heads, gradients);
  context.ops.attention_backward(
      packed_attention_backward(shape_, packed, heads, context.buffer(logsumexp_, slot), d_heads,
                                context.buffer(delta_), d_packed, reach_of(context, slot),
                                dropout_of(context, slot)),
      context.compute);
  if (spec_.rotary) {
    context.ops.rope(shape_, d_packed, context.buffer(cosine_), context.buffer(sine_),
                     context.optional_buffer(document_positions_, slot), Pass::kBackward,
                     context.compute);
  }
  norms_.backward(context, slot, d_packed, gradients);
  qkv_.backward(context, d_packed, x_NC, dx_NC, gradients);
}

}  // namespace dstrain
