// Rows of a weight that have magnitudes of their own. Floor of the first two: the bytes of their
// operands.
//
// N tokens, O outputs, R the rank of adapters
#include <algorithm>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/typed.h"
#include "kernels/magnitude_operands.h"
#include "kernels/math/unit_row.h"

namespace dstrain {
namespace {

/// 1 / length, and magnitude / length.
template <typename T>
void fill_factors(
    const T* magnitudes, const float* squares, std::int64_t n, float* inverses, float* factors) {
  for (std::int64_t i = 0; i < n; ++i) {
    inverses[i] = inverse_length(squares[i]);
    factors[i] = to_float(magnitudes[i]) * inverses[i];
  }
}

}  // namespace

void CpuOps::magnitude_forward(ConstColumns x_NO,
                               ConstTensor magnitudes_O,
                               ConstTensor squares_O,
                               ConstTensor bias_O,
                               Columns y_NO,
                               Write write,
                               Stream& stream) {
  const MagnitudeRows rows = expect_magnitudes(x_NO, y_NO, magnitudes_O, squares_O);
  stream.run([=, this] {
    const auto lease = scratch_.lease(2 * rows.width * size_of(DType::kF32));
    float* const factors = magnitudes_O.empty() ? nullptr : lease.as<float>();
    with_loops(loops_, x_NO.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
      if (factors != nullptr) {
        fill_factors(pointer<T>(magnitudes_O), pointer<float>(squares_O), rows.width,
                     factors + rows.width, factors);
      }
      parallel_for(threads_, rows.rows, [&](std::int64_t n, int /*worker*/) {
        loops.scale_columns(x_NO.begin<T>() + n * rows.x_stride, factors,
                            bias_O.empty() ? nullptr : pointer<T>(bias_O),
                            y_NO.begin<T>() + n * rows.y_stride, write == Write::kAdd, rows.width);
      });
    });
  });
}

// Blocks of rows as in linear_backward_bias: the same whatever the number of threads, added in
// order.
void CpuOps::magnitude_backward(ConstColumns dy_NO,
                                ConstColumns x_NO,
                                ConstTensor magnitudes_O,
                                ConstTensor squares_O,
                                Columns dx_NO,
                                Tensor d_magnitudes_O,
                                Write write,
                                Stream& stream) {
  const MagnitudeRows rows =
      expect_magnitudes_backward(dy_NO, x_NO, magnitudes_O, squares_O, dx_NO, d_magnitudes_O);
  stream.run([=, this] {
    constexpr std::int64_t kMostBlocks = 32;
    constexpr std::int64_t kFewestRows = 32;
    const std::int64_t block_rows =
        std::max(kFewestRows, (rows.rows + kMostBlocks - 1) / kMostBlocks);
    const std::int64_t blocks = (rows.rows + block_rows - 1) / block_rows;
    const auto lease = scratch_.lease((2 + blocks) * rows.width * size_of(DType::kF32));
    float* const factors = lease.as<float>();
    float* const inverses = factors + rows.width;
    float* const partials = inverses + rows.width;
    with_loops(loops_, x_NO.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
      if (!magnitudes_O.empty()) {
        fill_factors(pointer<T>(magnitudes_O), pointer<float>(squares_O), rows.width, inverses,
                     factors);
      }
      parallel_for(threads_, blocks, [&](std::int64_t block, int /*worker*/) {
        float* const sums = partials + block * rows.width;
        std::fill_n(sums, rows.width, 0.0F);
        const std::int64_t end = std::min((block + 1) * block_rows, rows.rows);
        for (std::int64_t n = block * block_rows; n < end; ++n) {
          const T* const dy = dy_NO.begin<T>() + n * rows.y_stride;
          T* const dx = dx_NO.begin<T>() + n * rows.dx_stride;
          if (magnitudes_O.empty()) {
            loops.scale_columns(dy, nullptr, nullptr, dx, false, rows.width);
          } else {
            loops.scale_columns_backward(dy, x_NO.begin<T>() + n * rows.x_stride, factors, inverses,
                                         dx, sums, rows.width);
          }
        }
      });
    });
    if (!magnitudes_O.empty()) {
      add_partials(partials, blocks, rows.width, rows.width, write, pointer<float>(d_magnitudes_O));
    }
  });
}

void CpuOps::add_row_products(ConstTensor a_OR, ConstTensor b_OR, Tensor sums_O, Stream& stream) {
  const auto [rows, width] = expect_row_products(a_OR, b_OR, sums_O);
  stream.run([=, this, rows = rows, width = width] {
    constexpr std::int64_t kRows = 256;
    with_loops(loops_, a_OR.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
      parallel_pieces(threads_, rows, kRows, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
          pointer<float>(sums_O)[row] += loops.row_product(
              pointer<T>(a_OR) + row * width, pointer<float>(b_OR) + row * width, width);
        }
      });
    });
  });
}

}  // namespace dstrain
