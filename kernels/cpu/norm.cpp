// LayerNorm and RMSNorm with the residual addition before it.
//
// N tokens, C width
#include <algorithm>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/operation_work.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/typed.h"
#include "kernels/norm_operands.h"

namespace dstrain {

void CpuOps::norm_forward(const NormForward& norm, Stream& stream) {
  const auto [tokens, width] = expect_norm_forward(norm);
  stream.run([=, this, tokens = tokens, width = width] {
    note_moved(norm.x_NC, norm.delta_NC, norm.residual_NC, norm.y_NC);
    constexpr std::int64_t kRows = 16;
    with_loops(loops_, norm.x_NC.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
      parallel_pieces(threads_, tokens, kRows, [&](std::int64_t begin, std::int64_t end) {
        const std::int64_t at = begin * width;
        const bool adds = !norm.delta_NC.empty();
        loops.norm_forward({
            .centered = norm.kind == NormKind::kLayerNorm,
            .weight_offset = weight_offset(norm.kind),
            .epsilon = norm.epsilon,
            .rows = end - begin,
            .width = width,
            .x = pointer<T>(norm.x_NC) + at,
            .delta = adds ? pointer<T>(norm.delta_NC) + at : nullptr,
            .weight = pointer<T>(norm.weight_C),
            .bias = pointer<T>(norm.bias_C),
            .residual = adds ? pointer<T>(norm.residual_NC) + at : nullptr,
            .y = pointer<T>(norm.y_NC) + at,
            .stats = pointer<float>(norm.stats_N2) + begin * 2,
        });
      });
    });
  });
}

// One task per block of rows. A block sums the gradients of weight and bias into its own scratch;
// the blocks are the same whatever the number of threads, and are added in order.
void CpuOps::norm_backward(const NormBackward& norm, Stream& stream) {
  const auto [tokens, width] = expect_norm_backward(norm);
  stream.run([=, this, tokens = tokens, width = width] {
    note_moved(norm.x_NC, norm.dy_NC, norm.dx_NC);
    constexpr std::int64_t kMostBlocks = 64;
    constexpr std::int64_t kFewestRows = 16;
    const std::int64_t block_rows = std::max(kFewestRows, (tokens + kMostBlocks - 1) / kMostBlocks);
    const std::int64_t blocks = (tokens + block_rows - 1) / block_rows;
    const std::int64_t stride = 2 * width;  // dweight, then dbias
    const auto lease = scratch_.lease(blocks * stride * size_of(DType::kF32));
    float* const partials = lease.as<float>();
    const bool has_bias = !norm.dbias_C.empty();
    with_loops(loops_, norm.x_NC.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
      parallel_for(threads_, blocks, [&](std::int64_t block, int /*worker*/) {
        const std::int64_t first = block * block_rows;
        const std::int64_t at = first * width;
        float* const sums = partials + block * stride;
        std::fill_n(sums, stride, 0.0F);
        loops.norm_backward({
            .centered = norm.kind == NormKind::kLayerNorm,
            .weight_offset = weight_offset(norm.kind),
            .add_to_dx = norm.dx_write == Write::kAdd,
            .rows = std::min(block_rows, tokens - first),
            .width = width,
            .dy = pointer<T>(norm.dy_NC) + at,
            .x = pointer<T>(norm.x_NC) + at,
            .weight = pointer<T>(norm.weight_C),
            .stats = pointer<float>(norm.stats_N2) + first * 2,
            .dx = pointer<T>(norm.dx_NC) + at,
            .dweight = sums,
            .dbias = has_bias ? sums + width : nullptr,
        });
      });
    });
    add_partials(partials, blocks, stride, width, norm.parameter_write,
                 pointer<float>(norm.dweight_C));
    if (has_bias) {
      add_partials(partials + width, blocks, stride, width, norm.parameter_write,
                   pointer<float>(norm.dbias_C));
    }
  });
}

}  // namespace dstrain
