#include "engine/model/attention.h"

#include <cmath>
#include <numbers>

#include "kernels/attention.h"

namespace dstrain {

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
    const Shape table{shape.positions(), head_dim / 2};
    attention.cosine_ =
        blueprint.add_buffer({"rope_cosine", table, DType::kF32, Lifetime::kConstant});
    attention.sine_ = blueprint.add_buffer({"rope_sine", table, DType::kF32, Lifetime::kConstant});
  }
  return attention;
}

void Attention::prepare(const LayerContext& context) const {
  if (!spec_.rotary) {
    return;
  }
  const Tensor cosine = context.buffer(cosine_);
  const Tensor sine = context.buffer(sine_);
  const RopeTables tables = rope_tables(spec_, cosine.dim(0));
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
                     context.at_positions(context.buffer(sine_)), Pass::kForward, context.compute);
  }
  if (context.extension) {
    context.ops.attention_cached(shape, context.extension->begin, spec_.window, packed,
                                 context.buffer(cache_), heads, context.compute);
  } else {
    context.ops.attention_forward({.in = packed_attention(shape, packed),
                                   .out = heads,
                                   .logsumexp_BHT = context.buffer(logsumexp_, slot)},
                                  context.compute);
  }
  output_.forward(context, heads, y_NC);
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
                                context.buffer(delta_), d_packed),
      context.compute);
  if (spec_.rotary) {
    context.ops.rope(shape_, d_packed, context.buffer(cosine_), context.buffer(sine_),
                     Pass::kBackward, context.compute);
  }
  norms_.backward(context, slot, d_packed, gradients);
  qkv_.backward(context, d_packed, x_NC, dx_NC, gradients);
}

double rope_frequency(const AttentionSpec& attention, std::int64_t pair) {
  const RotarySpec& rotary = attention.rotary.value();
  const double frequency = std::pow(
      rotary.theta, -2.0 * static_cast<double>(pair) / static_cast<double>(attention.head_dim));
  const RopeScaling& scaling = rotary.scaling;
  if (scaling.factor == 1.0) {
    return frequency;
  }
  // Llama-3.1: long wavelengths are stretched by `factor`, short ones kept, those between blended.
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  const auto original = static_cast<double>(scaling.original_max_positions);
  if (wavelength > original / scaling.low_frequency_factor) {
    return frequency / scaling.factor;
  }
  if (wavelength < original / scaling.high_frequency_factor) {
    return frequency;
  }
  const double smooth = (original / wavelength - scaling.low_frequency_factor) /
                        (scaling.high_frequency_factor - scaling.low_frequency_factor);
  return (1.0 - smooth) * frequency / scaling.factor + smooth * frequency;
}

RopeTables rope_tables(const AttentionSpec& attention, std::int64_t positions) {
  RopeTables tables;
  std::vector<float> frequencies;
  for (std::int64_t pair = 0; pair < attention.head_dim / 2; ++pair) {
    frequencies.push_back(static_cast<float>(rope_frequency(attention, pair)));
  }
  for (std::int64_t position = 0; position < positions; ++position) {
    for (const float frequency : frequencies) {
      // Hugging Face multiplies in f32 too; the table then agrees to the last bit or two.
      const float angle = static_cast<float>(position) * frequency;
      tables.cosine.push_back(std::cos(angle));
      tables.sine.push_back(std::sin(angle));
    }
  }
  return tables;
}

}  // namespace dstrain
