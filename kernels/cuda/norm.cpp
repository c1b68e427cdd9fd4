// LayerNorm and RMSNorm with the residual addition before it.
//
// N tokens, C width
#include "kernels/cuda/device/norm.h"

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device/reduce.h"
#include "kernels/cuda/scratch.h"
#include "kernels/cuda/typed.h"
#include "kernels/norm_operands.h"

namespace dstrain {

void CudaOps::norm_forward(const NormForward& norm, Stream& stream) {
  const auto [tokens, width] = expect_norm_forward(norm);
  const bool adds = !norm.delta_NC.empty();
  with_dtype(norm.x_NC.dtype(), [&, tokens = tokens, width = width]<typename T>() {
    cuda::norm_forward<T>(on(stream), {.centered = norm.kind == NormKind::kLayerNorm,
                                       .weight_offset = weight_offset(norm.kind),
                                       .epsilon = norm.epsilon,
                                       .rows = tokens,
                                       .width = width,
                                       .x = pointer<T>(norm.x_NC),
                                       .delta = adds ? pointer<T>(norm.delta_NC) : nullptr,
                                       .weight = pointer<T>(norm.weight_C),
                                       .bias = pointer<T>(norm.bias_C),
                                       .residual = adds ? pointer<T>(norm.residual_NC) : nullptr,
                                       .y = pointer<T>(norm.y_NC),
                                       .stats = pointer<float>(norm.stats_N2)});
  });
}

void CudaOps::norm_backward(const NormBackward& norm, Stream& stream) {
  const auto [tokens, width] = expect_norm_backward(norm);
  check(width <= cuda::kWidestNorm, "norm: rows of {}, a GPU takes up to {}", width,
        cuda::kWidestNorm);
  const Launch to = on(stream);
  const bool has_bias = !norm.dbias_C.empty();
  const std::int64_t blocks = cuda::norm_backward_blocks(to, tokens);
  const Scratch partials(blocks * 2 * width * size_of(DType::kF32), to.stream);
  with_dtype(norm.x_NC.dtype(), [&, tokens = tokens, width = width]<typename T>() {
    cuda::norm_backward<T>(to,
                           {.centered = norm.kind == NormKind::kLayerNorm,
                            .weight_offset = weight_offset(norm.kind),
                            .add_to_dx = norm.dx_write == Write::kAdd,
                            .has_bias = has_bias,
                            .rows = tokens,
                            .width = width,
                            .dy = pointer<T>(norm.dy_NC),
                            .x = pointer<T>(norm.x_NC),
                            .weight = pointer<T>(norm.weight_C),
                            .stats = pointer<float>(norm.stats_N2),
                            .dx = pointer<T>(norm.dx_NC)},
                           partials.as<float>());
  });
  const bool adds = norm.parameter_write == Write::kAdd;
  cuda::add_partial_rows(to, partials.as<float>(), blocks, 2 * width, width,
                         pointer<float>(norm.dweight_C), adds);
  if (has_bias) {
    cuda::add_partial_rows(to, partials.as<float>() + width, blocks, 2 * width, width,
                           pointer<float>(norm.dbias_C), adds);
  }
}

}  // namespace dstrain
