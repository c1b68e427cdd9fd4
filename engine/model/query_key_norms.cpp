#include "engine/model/query_key_norms.h"

#include "kernels/group_norm.h"

namespace dstrain {

QueryKeyNorms QueryKeyNorms::declare(const LayerShape& shape,
                                     const std::string& name,
                                     std::int64_t query_width,
                                     std::int64_t key_value_width,
                                     Blueprint& blueprint) {
  const AttentionSpec& spec = shape.layer.attention;
  QueryKeyNorms norms;
  if (spec.query_key_norm == QueryKeyNorm::kNone) {
    return norms;
  }
  norms.epsilon_ = shape.layer.norm.epsilon;
  norms.weight_offset_ = weight_offset(shape.layer.norm.kind);
  norms.full_width_ = spec.query_key_norm == QueryKeyNorm::kFullWidth;
  std::int64_t column = 0;
  std::int64_t groups = 0;
  const auto add = [&](const char* which, std::int64_t width) {
    Part part{.weight = blueprint.add_param(shape.param(shape.tensor_named(name + which))),
              .first = column,
              .width = width,
              .groups = norms.full_width_ ? 1 : width / spec.head_dim,
              .first_group = groups};
    column += part.width;
    groups += part.groups;
    norms.parts_.push_back(part);
  };
  add(".query_norm.weight", query_width);
  add(".key_norm.weight", key_value_width);
  const Shape packed{shape.tokens(), query_width + 2 * key_value_width};
  const Shape sums{shape.tokens() * groups};
  norms.before_ = shape.add_activation(blueprint, name, "qkv_before_norm", packed, shape.compute,
                                       Origin::kProduct, LayerKind::kAttention);
  norms.squares_ = shape.add_activation(blueprint, name, "qk_squares", sums, DType::kF32,
                                        Origin::kProduct, LayerKind::kAttention);
  norms.products_ = shape.add_backward_buffer(
      blueprint, {"qk_products", sums, DType::kF32, Lifetime::kScratch, LayerKind::kAttention});
  return norms;
}

Tensor QueryKeyNorms::of_part(Tensor sums, std::int64_t rows, const Part& part) {
  const std::int64_t end = part.first_group + part.groups;
  return sums.flat(rows * part.first_group, rows * end).view({rows, part.groups});
}

void QueryKeyNorms::sum_over_ranks(const LayerContext& context, Tensor sums) const {
  if (full_width_ && context.tensor_parallel.size() > 1) {
    context.tensor_parallel.group().all_reduce(sums, ReduceOp::kSum, Purpose::kActivation,
                                               context.compute);
  }
}

// Ranks that share a key head count it once each, in squares and width alike.
std::int64_t QueryKeyNorms::norm_width(const LayerContext& context, const Part& part) const {
  return part.width / part.groups * (full_width_ ? context.tensor_parallel.size() : 1);
}

void QueryKeyNorms::forward(const LayerContext& context, int slot, Tensor packed) const {
  if (parts_.empty()) {
    return;
  }
  const std::int64_t rows = packed.dim(0);
  const Tensor before = context.activation(before_, slot);
  const std::int64_t groups = parts_.back().first_group + parts_.back().groups;
  const Tensor squares = context.buffer(squares_, slot).flat(0, rows * groups);
  context.ops.cast(packed, before, context.compute);
  for (const Part& part : parts_) {
    context.ops.group_squares(ConstColumns(before, part.first, part.width),
                              part.width / part.groups, of_part(squares, rows, part),
                              context.compute);
  }
  sum_over_ranks(context, squares);
  for (const Part& part : parts_) {
    context.ops.group_norm_forward({.epsilon = epsilon_,
                                    .norm_width = norm_width(context, part),
                                    .x = ConstColumns(before, part.first, part.width),
                                    .weight_W = context.param(part.weight),
                                    .weight_offset = weight_offset_,
                                    .squares_NG = of_part(squares, rows, part),
                                    .y = Columns(packed, part.first, part.width)},
                                   context.compute);
  }
}

void QueryKeyNorms::backward(const LayerContext& context,
                             int slot,
                             Tensor d_packed,
                             const GradTarget& gradients) const {
  if (parts_.empty()) {
    return;
  }
  const std::int64_t rows = d_packed.dim(0);
  const Tensor before = context.buffer(before_, slot);
  const Tensor squares = context.buffer(squares_, slot);
  const Tensor products = context.buffer(products_).flat(0, squares.numel());
  for (const Part& part : parts_) {
    context.ops.group_products(ConstColumns(d_packed, part.first, part.width),
                               ConstColumns(before, part.first, part.width),
                               context.param(part.weight), weight_offset_,
                               of_part(products, rows, part), context.compute);
  }
  sum_over_ranks(context, products);
  for (const Part& part : parts_) {
    context.ops.group_norm_backward({.epsilon = epsilon_,
                                     .norm_width = norm_width(context, part),
                                     .dy = ConstColumns(d_packed, part.first, part.width),
                                     .x = ConstColumns(before, part.first, part.width),
                                     .weight_W = context.param(part.weight),
                                     .weight_offset = weight_offset_,
                                     .squares_NG = of_part(squares, rows, part),
                                     .products_NG = of_part(products, rows, part),
                                     .dx = Columns(d_packed, part.first, part.width),
                                     .dweight_W = gradients.param(part.weight),
                                     .weight_write = gradients.write},
                                    context.compute);
  }
}

}  // namespace dstrain
