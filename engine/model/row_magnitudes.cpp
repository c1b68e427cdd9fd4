#include "engine/model/row_magnitudes.h"

#include "engine/config/arch/adapters.h"

namespace dstrain {
namespace {

Tensor as_rows(Tensor buffer, std::int64_t rows, std::int64_t width) {
  return buffer.flat(0, rows * width).view({rows, width});
}

}  // namespace

std::optional<RowMagnitudes> RowMagnitudes::declare(const LayerShape& shape,
                                                    const std::vector<std::string>& names,
                                                    const std::vector<std::int64_t>& outputs,
                                                    bool sums,
                                                    Blueprint& blueprint) {
  RowMagnitudes layer;
  layer.sums_ = sums;
  bool has_any = false;
  for (std::size_t i = 0; i < names.size(); ++i) {
    Part part{.magnitudes = {}, .first = layer.outputs_, .width = outputs[i]};
    if (const TensorDecl* const own =
            find_tensor(shape.tensors, names[i] + std::string(kAdapterMagnitude))) {
      part.magnitudes = blueprint.add_param(shape.param(*own));
      has_any = true;
    }
    layer.parts_.push_back(part);
    layer.outputs_ += outputs[i];
  }
  if (!has_any) return std::nullopt;
  const Shape of_tokens{shape.tokens(), layer.outputs_};
  layer.directions_ = shape.add_activation(blueprint, names.front(), "directions", of_tokens,
                                           shape.compute, Origin::kProduct, LayerKind::kOther);
  // Few, and kept whatever is computed again: ranks may have met for them.
  const std::string squares = names.front() + "/row_squares";
  layer.squares_ =
      blueprint.add_buffer({squares,
                            {layer.outputs_},
                            DType::kF32,
                            shape.extends_cache() ? Lifetime::kScratch : Lifetime::kSaved});
  layer.d_directions_ = shape.add_backward_buffer(
      blueprint, {"low_rank/d_directions", of_tokens, shape.compute, Lifetime::kScratch});
  return layer;
}

Tensor RowMagnitudes::directions(const LayerContext& context, int slot, std::int64_t tokens) const {
  return as_rows(context.buffer(directions_, slot), tokens, outputs_);
}

Tensor RowMagnitudes::squares(const LayerContext& context, int slot) const {
  return context.buffer(squares_, slot).flat(0, outputs_);
}

void RowMagnitudes::sum_over_ranks(const LayerContext& context, Tensor squares_O) const {
  if (sums_ && context.tensor_parallel.size() > 1) {
    context.tensor_parallel.group().all_reduce(squares_O, ReduceOp::kSum, Purpose::kActivation,
                                               context.compute);
  }
}

void RowMagnitudes::forward(
    const LayerContext& context, int slot, ConstTensor bias_O, Tensor y_NO, Write write) const {
  const ConstTensor d_NO = directions(context, slot, y_NO.dim(0));
  const Tensor squares_O = squares(context, slot);
  for (const Part& part : parts_) {
    const std::int64_t end = part.first + part.width;
    const bool has_some = part.magnitudes.index >= 0;
    context.ops.magnitude_forward(
        {d_NO, part.first, part.width}, has_some ? context.param(part.magnitudes) : ConstTensor{},
        has_some ? ConstTensor(squares_O.flat(part.first, end)) : ConstTensor{},
        bias_O.empty() ? bias_O : bias_O.flat(part.first, end), {y_NO, part.first, part.width},
        write, context.compute);
  }
}

Tensor RowMagnitudes::backward(const LayerContext& context,
                               int slot,
                               ConstTensor dy_NO,
                               const GradTarget& gradients) const {
  const ConstTensor d_NO = directions(context, slot, dy_NO.dim(0));
  const Tensor dd_NO = as_rows(context.buffer(d_directions_), dy_NO.dim(0), outputs_);
  const Tensor squares_O = squares(context, slot);
  for (const Part& part : parts_) {
    const std::int64_t end = part.first + part.width;
    const bool has_some = part.magnitudes.index >= 0;
    context.ops.magnitude_backward(
        {dy_NO, part.first, part.width}, {d_NO, part.first, part.width},
        has_some ? context.param(part.magnitudes) : ConstTensor{},
        has_some ? ConstTensor(squares_O.flat(part.first, end)) : ConstTensor{},
        {dd_NO, part.first, part.width}, has_some ? gradients.param(part.magnitudes) : Tensor{},
        gradients.write, context.compute);
  }
  return dd_NO;
}

}  // namespace dstrain
