#include "engine/model/fp8_linear.h"

#include "engine/runtime/fp8_scales.h"

namespace dstrain {
namespace {

/// The first bytes of a buffer that layers of several shapes share.
Tensor as_f8(Tensor buffer, DType dtype, std::int64_t rows, std::int64_t columns) {
  return {buffer.flat(0, rows * columns).data(), dtype, Shape{rows, columns}};
}

}  // namespace

Fp8Linear Fp8Linear::declare(const std::string& name, const Sizes& sizes, Blueprint& blueprint) {
  Fp8Linear linear;
  linear.sizes_ = sizes;
  linear.input_ = blueprint.add_scaled_tensor({name + "/input", DType::kF8E4M3});
  linear.weight_ = blueprint.add_scaled_tensor({name + "/weight", DType::kF8E4M3});
  linear.gradient_ = blueprint.add_scaled_tensor({name + "/gradient", DType::kF8E5M2});
  const auto& [tokens, inputs, outputs] = sizes;
  linear.rows_ =
      blueprint.add_buffer({"fp8/rows", {tokens * inputs}, DType::kU8, Lifetime::kScratch});
  linear.weights_ =
      blueprint.add_buffer({"fp8/weight", {outputs * inputs}, DType::kU8, Lifetime::kScratch});
  blueprint.add_backward_buffer({"fp8/rows", {tokens * outputs}, DType::kU8, Lifetime::kScratch});
  linear.columns_ = blueprint.add_backward_buffer(
      {"fp8/columns", {tokens * outputs}, DType::kU8, Lifetime::kScratch});
  return linear;
}

void Fp8Linear::forward(const ExecContext& context,
                        ConstTensor x_NI,
                        ConstTensor w_OI,
                        ConstTensor bias_O,
                        Tensor y_NO) const {
  Fp8Scales& scales = context.fp8_scales();
  const auto& [tokens, inputs, outputs] = sizes_;
  const Tensor x = as_f8(context.buffer(rows_), DType::kF8E4M3, tokens, inputs);
  const Tensor w = as_f8(context.buffer(weights_), DType::kF8E4M3, outputs, inputs);
  scales.quantize(input_, x_NI, x, {}, context.compute);
  scales.quantize(weight_, w_OI, w, {}, context.compute);
  // A product with an f32 result does not add the bias, so it is added separately.
  const bool apart = y_NO.dtype() == DType::kF32 && !bias_O.empty();
  context.ops.scaled_product({x, scales.scale(input_)}, {w, scales.scale(weight_)},
                             apart ? ConstTensor{} : bias_O, y_NO, Write::kOverwrite,
                             context.compute);
  if (apart) {
    context.ops.add_bias(y_NO, bias_O, context.compute);
  }
}

void Fp8Linear::backward(const ExecContext& context,
                         ConstTensor dy_NO,
                         ConstTensor x_NI,
                         ConstTensor w_OI,
                         Tensor dx_NI,
                         Tensor dw_OI,
                         Write write) const {
  Fp8Scales& scales = context.fp8_scales();
  const auto& [tokens, inputs, outputs] = sizes_;
  const Tensor dy = as_f8(context.buffer(rows_), DType::kF8E5M2, tokens, outputs);
  const Tensor dy_ON = as_f8(context.buffer(columns_), DType::kF8E5M2, outputs, tokens);
  const Tensor w_IO = as_f8(context.buffer(weights_), DType::kF8E4M3, inputs, outputs);
  const ConstTensor gradient_scale = scales.scale(gradient_);
  scales.quantize(gradient_, dy_NO, dy, dw_OI.empty() ? Tensor{} : dy_ON, context.compute);
  scales.quantize(weight_, w_OI, {}, w_IO, context.compute);
  context.ops.scaled_product({dy, gradient_scale}, {w_IO, scales.scale(weight_)}, {}, dx_NI,
                             Write::kOverwrite, context.compute);
  if (dw_OI.empty()) return;
  const Tensor x_IN = as_f8(context.buffer(rows_), DType::kF8E4M3, inputs, tokens);
  scales.quantize(input_, x_NI, {}, x_IN, context.compute);
  context.ops.scaled_product({dy_ON, gradient_scale}, {x_IN, scales.scale(input_)}, {}, dw_OI,
                             write, context.compute);
}

}  // namespace dstrain
