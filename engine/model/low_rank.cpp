#include "engine/model/low_rank.h"

#include <algorithm>
#include <utility>

#include "engine/config/arch/adapters.h"

namespace dstrain {
namespace {

// A is a factor [r, I] as it lies, B is one [r, O] transposed.
constexpr bool kAsItLies = false;
constexpr bool kTransposed = true;

/// The first rows of scratch that is at least as large.
Tensor first_rows(Tensor scratch, std::int64_t rows, std::int64_t width) {
  return scratch.flat(0, rows * width).view({rows, width});
}

}  // namespace

std::optional<LowRank> LowRank::declare(const LayerShape& shape,
                                        const std::vector<std::string>& names,
                                        const std::vector<std::int64_t>& outputs,
                                        Blueprint& blueprint) {
  LowRank layer;
  layer.rank_ = shape.adapters.rank;
  layer.scale_ = shape.adapters.scale;
  std::int64_t first = 0;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (const TensorDecl* a = find_tensor(shape.tensors, names[i] + std::string(kAdapterA))) {
      layer.parts_.push_back({.a = blueprint.add_param(shape.param(*a)), .b = {}, .first = first});
    }
    if (const TensorDecl* b = find_tensor(shape.tensors, names[i] + std::string(kAdapterB))) {
      Part& part = layer.parts_.back();
      const ParamRef ref = blueprint.add_param(shape.param(*b));
      part.b = part.count == 0 ? ref : part.b;
      part.count += 1;
      part.width += outputs[i];
    }
    first += outputs[i];
  }
  if (layer.parts_.empty()) return std::nullopt;
  const auto scratch = [&](const char* name) {
    return BufferDecl{name, {shape.tokens(), layer.rank_}, shape.compute, Lifetime::kScratch};
  };
  layer.narrow_ = blueprint.add_buffer(scratch("low_rank/narrow"));
  layer.d_narrow_ = shape.add_backward_buffer(blueprint, scratch("low_rank/d_narrow"));
  if (shape.adapters.magnitudes) {
    std::int64_t widest = 0;
    for (const Part& part : layer.parts_) {
      widest = std::max(widest, part.width);
    }
    const auto of_rows = [&](const char* name) {
      return blueprint.add_buffer({name, {widest, layer.rank_}, DType::kF32, Lifetime::kScratch});
    };
    layer.products_ = of_rows("low_rank/products");
    layer.of_gram_ = of_rows("low_rank/of_gram");
    layer.gram_ = blueprint.add_buffer(
        {"low_rank/gram", {layer.rank_, layer.rank_}, shape.compute, Lifetime::kScratch});
  }
  return layer;
}

Tensor LowRank::narrow(const ExecContext& context, const Part& part, ConstTensor x_NI) const {
  const Tensor h_NR = first_rows(context.buffer(narrow_), x_NI.dim(0), rank_);
  context.ops.reduce_to_rank(x_NI, context.param(part.a), kAsItLies, scale_, h_NR, context.compute);
  return h_NR;
}

ConstTensor LowRank::b_of(const ExecContext& context, const Part& part) const {
  return context.params(part.b, part.count, {part.width, rank_});
}

void LowRank::forward(const ExecContext& context, ConstTensor x_NI, Tensor y_NO) const {
  for (const Part& part : parts_) {
    context.ops.add_from_rank(narrow(context, part, x_NI), b_of(context, part), kTransposed,
                              Columns(y_NO, part.first, part.width), context.compute);
  }
}

void LowRank::add_squares(const ExecContext& context,
                          ConstTensor weight_OI,
                          Tensor squares_O) const {
  const Tensor gram = context.buffer(gram_);
  for (const Part& part : parts_) {
    const std::int64_t end = part.first + part.width;
    const ConstTensor a = context.param(part.a);
    const ConstTensor b = b_of(context, part);
    const Tensor products = first_rows(context.buffer(products_), part.width, rank_);
    const Tensor of_gram = first_rows(context.buffer(of_gram_), part.width, rank_);
    context.ops.linear_forward(weight_OI.rows(part.first, end), a, {}, products, context.compute);
    context.ops.add_scaled(products, 2.0F * scale_, products, Write::kOverwrite, context.compute);
    context.ops.linear_forward(a, a, {}, gram, context.compute);
    context.ops.linear_forward(b, gram, {}, of_gram, context.compute);
    context.ops.add_scaled(of_gram, scale_ * scale_, products, Write::kAdd, context.compute);
    context.ops.add_row_products(b, products, squares_O.flat(part.first, end), context.compute);
  }
}

void LowRank::backward(const ExecContext& context,
                       ConstTensor dy_NO,
                       ConstTensor x_NI,
                       Tensor dx_NI,
                       const GradTarget& gradients) const {
  Ops& ops = context.ops;
  const Tensor d_narrow = first_rows(context.buffer(d_narrow_), x_NI.dim(0), rank_);
  for (const Part& part : parts_) {
    const ConstColumns dy(dy_NO, part.first, part.width);
    ops.rank_gradient(narrow(context, part, x_NI), dy,
                      gradients.params(part.b, part.count, {part.width, rank_}), kTransposed,
                      gradients.write, context.compute);
    ops.reduce_to_rank(dy, b_of(context, part), kTransposed, scale_, d_narrow, context.compute);
    ops.rank_gradient(d_narrow, x_NI, gradients.param(part.a), kAsItLies, gradients.write,
                      context.compute);
    ops.add_from_rank(d_narrow, context.param(part.a), kAsItLies, dx_NI, context.compute);
  }
}

}  // namespace dstrain
