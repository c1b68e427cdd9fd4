#include "engine/model/latent_projection.h"

#include <utility>

#include "kernels/group_norm.h"

namespace dstrain {
namespace {

constexpr float kEpsilon = 1e-6F;  ///< of latents' norms, whatever that of the blocks'

}  // namespace

LatentProjection LatentProjection::declare(const LayerShape& shape,
                                           const std::string& name,
                                           Blueprint& blueprint) {
  const AttentionSpec& attention = shape.layer.attention;
  const LatentSpec& spec = *attention.latent;
  LatentProjection layer;
  layer.heads_ = attention.heads / shape.tensor.ranks;
  layer.plain_ = spec.plain_dim;
  layer.rotated_ = spec.rotated_dim;
  layer.value_ = spec.value_dim;
  if (spec.query_rank > 0) {
    layer.query_down_ = Linear::declare(shape, {name + ".query_down"}, blueprint);
    layer.query_norm_ = layer.declare_norm(shape, name + ".query_latent_norm", blueprint);
    layer.query_ = Linear::declare(shape, {name + ".query_up"}, blueprint);
  } else {
    layer.query_ = Linear::declare(shape, {name + ".query"}, blueprint);
  }
  layer.latent_down_ = Linear::declare(shape, {name + ".latent_down"}, blueprint);
  layer.latent_norm_ = layer.declare_norm(shape, name + ".latent_norm", blueprint);
  layer.latent_up_ = Linear::declare(shape, {name + ".latent_up"}, blueprint);

  const std::int64_t tokens = shape.tokens();
  const auto keep = [&](const char* what, std::int64_t width) {
    return shape.add_activation(blueprint, name, what, {tokens, width}, shape.compute,
                                Origin::kProduct, LayerKind::kAttention);
  };
  const auto decl = [&](const char* what, std::int64_t width, DType dtype) {
    return BufferDecl{std::string("latent/") + what,
                      {tokens, width},
                      dtype,
                      Lifetime::kScratch,
                      LayerKind::kAttention};
  };
  const auto scratch = [&](const char* what, std::int64_t width) {
    return blueprint.add_buffer(decl(what, width, shape.compute));
  };
  const auto d_scratch = [&](const char* what, std::int64_t width, DType dtype) {
    return shape.add_backward_buffer(blueprint, decl(what, width, dtype));
  };
  const std::int64_t latent_width = spec.latent_rank + layer.rotated_;
  if (spec.query_rank > 0) {
    layer.query_latent_ = keep("query_latent", spec.query_rank);
    layer.query_normed_ = keep("query_normed", spec.query_rank);
    layer.d_query_latent_ = d_scratch("d_query_latent", spec.query_rank, shape.compute);
  }
  layer.latent_ = keep("latent", latent_width);
  layer.normed_ = keep("latent_normed", spec.latent_rank);
  layer.q_ = scratch("q", layer.heads_ * layer.depth());
  layer.kv_ = scratch("kv", layer.heads_ * (layer.plain_ + layer.value_));
  if (layer.value_ < layer.depth()) {
    layer.values_ = scratch("values", layer.heads_ * layer.value_);
    layer.d_values_ = d_scratch("d_values", layer.heads_ * layer.value_, shape.compute);
  }
  layer.d_latent_ = d_scratch("d_latent", latent_width, shape.compute);
  layer.d_normed_ = d_scratch("d_normed", spec.latent_rank, shape.compute);
  layer.d_x_ = d_scratch("d_x", shape.model.hidden_size, shape.compute);
  layer.products_ = d_scratch("products", 1, DType::kF32);
  return layer;
}

LatentProjection::Norm LatentProjection::declare_norm(const LayerShape& shape,
                                                      const std::string& name,
                                                      Blueprint& blueprint) const {
  Norm norm;
  norm.weight = blueprint.add_param(shape.param(shape.tensor_named(name + ".weight")));
  norm.width = blueprint.param(norm.weight).local_shape()[0];
  norm.squares = shape.add_activation(blueprint, name, "squares", {shape.tokens()}, DType::kF32,
                                      Origin::kProduct, LayerKind::kAttention);
  return norm;
}

void LatentProjection::norm_forward(
    const LayerContext& context, int slot, const Norm& norm, Tensor x, Tensor y) const {
  const ConstColumns columns(x, 0, norm.width);
  const Tensor squares = context.activation(norm.squares, slot).view({x.dim(0), 1});
  context.ops.group_squares(columns, norm.width, squares, context.compute);
  context.ops.group_norm_forward({.epsilon = kEpsilon,
                                  .norm_width = norm.width,
                                  .x = columns,
                                  .weight_W = context.param(norm.weight),
                                  .weight_offset = 0.0F,
                                  .squares_NG = squares,
                                  .y = Columns(y, 0, norm.width)},
                                 context.compute);
}

void LatentProjection::norm_backward(const LayerContext& context,
                                     int slot,
                                     const Norm& norm,
                                     ConstTensor dy,
                                     ConstTensor x,
                                     Tensor dx,
                                     const GradTarget& gradients) const {
  const ConstColumns columns(x, 0, norm.width);
  const ConstColumns d_columns(dy, 0, norm.width);
  const Tensor products = context.buffer(products_);
  context.ops.group_products(d_columns, columns, context.param(norm.weight), 0.0F, products,
                             context.compute);
  context.ops.group_norm_backward(
      {.epsilon = kEpsilon,
       .norm_width = norm.width,
       .dy = d_columns,
       .x = columns,
       .weight_W = context.param(norm.weight),
       .weight_offset = 0.0F,
       .squares_NG = context.buffer(norm.squares, slot).view({x.dim(0), 1}),
       .products_NG = products,
       .dx = Columns(dx, 0, norm.width),
       .dweight_W = gradients.param(norm.weight),
       .weight_write = gradients.write},
      context.compute);
}

// Strides: tokens, heads, pairs.
template <typename Visit>
void LatentProjection::for_each_copy(std::int64_t rows, Visit&& visit) const {
  const std::int64_t to = packed_width();
  const std::int64_t keys = heads_ * depth();
  const std::int64_t pairs = rotated_ / 2;
  const std::int64_t latent = latent_norm_.width + rotated_;
  const std::int64_t of_key_value = plain_ + value_;
  const std::int64_t from_key_value = heads_ * of_key_value;
  for (std::int64_t half = 0; half < 2; ++half) {
    const auto rotated = [&](Source source, const BlockPlaces& from, std::int64_t part) {
      visit(source, BlockCopy{.counts = {rows, heads_, pairs},
                              .run = 1,
                              .from = from,
                              .to = {part + half * pairs, {to, depth(), 1}}});
    };
    rotated(Source::kQuery, {plain_ + half, {keys, depth(), 2}}, 0);
    rotated(Source::kRotated, {latent_norm_.width + half, {latent, 0, 2}}, keys);
  }
  const auto add = [&](Source source, std::int64_t run, const BlockPlaces& from,
                       std::int64_t part) {
    visit(
        source,
        BlockCopy{
            .counts = {1, rows, heads_}, .run = run, .from = from, .to = {part, {0, to, depth()}}});
  };
  add(Source::kQuery, plain_, {0, {0, keys, depth()}}, rotated_);
  add(Source::kKeyValue, plain_, {0, {0, from_key_value, of_key_value}}, keys + rotated_);
  add(Source::kKeyValue, value_, {plain_, {0, from_key_value, of_key_value}}, 2 * keys);
}

void LatentProjection::forward(const LayerContext& context,
                               int slot,
                               ConstTensor x_NC,
                               Tensor packed) const {
  const Tensor q = context.activation(q_, 0);
  const Tensor kv = context.activation(kv_, 0);
  const Tensor latent = context.activation(latent_, slot);
  const Tensor normed = context.activation(normed_, slot);
  if (query_down_) {
    const Tensor query_latent = context.activation(query_latent_, slot);
    const Tensor query_normed = context.activation(query_normed_, slot);
    query_down_->forward(context, slot, x_NC, query_latent);
    norm_forward(context, slot, query_norm_, query_latent, query_normed);
    query_.forward(context, slot, query_normed, q);
  } else {
    query_.forward(context, slot, x_NC, q);
  }
  latent_down_.forward(context, slot, x_NC, latent);
  norm_forward(context, slot, latent_norm_, latent, normed);
  latent_up_.forward(context, slot, normed, kv);
  if (value_ < depth()) {
    context.ops.zero(packed, context.compute);
  }
  for_each_copy(packed.dim(0), [&](Source source, const BlockCopy& copy) {
    const Tensor& from = source == Source::kQuery ? q : source == Source::kKeyValue ? kv : latent;
    context.ops.copy_blocks(copy, from, packed, Write::kOverwrite, context.compute);
  });
}

void LatentProjection::backward(const LayerContext& context,
                                int slot,
                                ConstTensor x_NC,
                                Tensor d_packed,
                                Tensor dx_NC,
                                const GradTarget& gradients) const {
  const std::int64_t rows = d_packed.dim(0);
  const Tensor d_q = context.buffer(q_);
  const Tensor d_kv = context.buffer(kv_);
  const Tensor d_latent = context.buffer(d_latent_);
  // The gradients of r of all heads are added up, halves of the heads onto halves, in the first.
  const std::int64_t keys = heads_ * depth();
  for (std::int64_t left = heads_; left > 1;) {
    const std::int64_t added = left / 2;
    left -= added;
    context.ops.copy_blocks({.counts = {1, rows, added},
                             .run = rotated_,
                             .from = {keys + left * depth(), {0, packed_width(), depth()}},
                             .to = {keys, {0, packed_width(), depth()}}},
                            d_packed, d_packed, Write::kAdd, context.compute);
  }
  for_each_copy(rows, [&](Source source, BlockCopy copy) {
    std::swap(copy.from, copy.to);
    if (source == Source::kRotated) copy.counts[1] = 1;
    const Tensor& to = source == Source::kQuery      ? d_q
                       : source == Source::kKeyValue ? d_kv
                                                     : d_latent;
    context.ops.copy_blocks(copy, d_packed, to, Write::kOverwrite, context.compute);
  });
  const Tensor d_normed = context.buffer(d_normed_);
  latent_up_.backward(context, slot, d_kv, context.buffer(normed_, slot), d_normed, gradients);
  norm_backward(context, slot, latent_norm_, d_normed, context.buffer(latent_, slot), d_latent,
                gradients);
  const Tensor d_x = context.buffer(d_x_);
  latent_down_.backward(context, slot, d_latent, x_NC, d_x, gradients);
  if (query_down_) {
    const Tensor d_query_latent = context.buffer(d_query_latent_);
    query_.backward(context, slot, d_q, context.buffer(query_normed_, slot), d_query_latent,
                    gradients);
    norm_backward(context, slot, query_norm_, d_query_latent, context.buffer(query_latent_, slot),
                  d_query_latent, gradients);
    query_down_->backward(context, slot, d_query_latent, x_NC, dx_NC, gradients);
  } else {
    query_.backward(context, slot, d_q, x_NC, dx_NC, gradients);
  }
  context.ops.add(dx_NC, d_x, dx_NC, context.compute);
}

BlockCopy LatentProjection::value_copy(std::int64_t rows) const {
  return {.counts = {1, rows, heads_},
          .run = value_,
          .from = {0, {0, heads_ * depth(), depth()}},
          .to = {0, {0, heads_ * value_, value_}}};
}

Tensor LatentProjection::values_of(const LayerContext& context, Tensor heads) const {
  if (value_ == depth()) {
    return heads;
  }
  const Tensor values = context.activation(values_, 0);
  context.ops.copy_blocks(value_copy(heads.dim(0)), heads, values, Write::kOverwrite,
                          context.compute);
  return values;
}

Tensor LatentProjection::d_values(const LayerContext& context, Tensor d_heads) const {
  return value_ == depth() ? d_heads : context.buffer(d_values_);
}

void LatentProjection::spread(const LayerContext& context, Tensor d_heads) const {
  if (value_ == depth()) {
    return;
  }
  BlockCopy copy = value_copy(d_heads.dim(0));
  std::swap(copy.from, copy.to);
  context.ops.zero(d_heads, context.compute);
  context.ops.copy_blocks(copy, context.buffer(d_values_), d_heads, Write::kOverwrite,
                          context.compute);
}

}  // namespace dstrain
