// Rows of tokens in the order of the experts that they chose: gathered, multiplied, and added up.
//
// N tokens, K chosen experts of each, M rows, E experts, C width, I / O inputs and outputs
#include <algorithm>
#include <type_traits>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/typed.h"
#include "kernels/routing_operands.h"

namespace dstrain {
namespace {

constexpr std::int64_t kRowsOfPiece = 16;
constexpr std::int64_t kMostRowsOfTask = 256;  // of a product

/// y = scale · x, both of T.
template <typename T>
void scale_row(const TypedLoops<T>& loops, const T* x, float scale, T* y, std::int64_t n) {
  if constexpr (std::is_same_v<T, float>) {
    loops.scale_to_f32(x, scale, y, /*adds=*/false, n);
  } else if constexpr (std::is_same_v<T, BF16>) {
    loops.scale_to_bf16(x, scale, y, /*adds=*/false, n);
  } else {
    loops.scale_to_f16(x, scale, y, /*adds=*/false, n);
  }
}

template <typename T>
void store_row(const VectorLoops& loops, const float* x, T* y, std::int64_t n) {
  if constexpr (std::is_same_v<T, float>) {
    std::copy_n(x, n, y);
  } else if constexpr (std::is_same_v<T, BF16>) {
    loops.f32.cast_to_bf16(x, y, n);
  } else {
    loops.f32.cast_to_f16(x, y, n);
  }
}

}  // namespace

void CpuOps::gather_rows(ConstTensor x_NC,
                         ConstTensor slots_M,
                         std::int64_t per_token,
                         ConstTensor weights_NK,
                         Tensor y_MC,
                         Stream& stream) {
  const RowSizes sizes =
      expect_rows(x_NC, y_MC, slots_M, as_matrix(y_MC).rows, per_token, weights_NK);
  stream.run([=, this] {
    const auto* const slots = pointer<std::int32_t>(slots_M);
    const float* const weights = pointer<float>(weights_NK);
    with_loops(loops_, x_NC.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
      parallel_pieces(
          threads_, sizes.rows, kRowsOfPiece, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t m = begin; m < end; ++m) {
              const T* const x = pointer<T>(x_NC) + slots[m] / sizes.per_token * sizes.width;
              T* const y = pointer<T>(y_MC) + m * sizes.width;
              if (weights == nullptr) {
                std::copy_n(x, sizes.width, y);
              } else {
                scale_row(loops, x, weights[slots[m]], y, sizes.width);
              }
            }
          });
    });
  });
}

void CpuOps::sum_rows(ConstTensor y_MC,
                      ConstTensor places_NK,
                      ConstTensor weights_NK,
                      Tensor x_NC,
                      Write write,
                      Stream& stream) {
  const RowSizes sizes =
      expect_rows(x_NC, y_MC, places_NK, places_NK.numel(), as_matrix(places_NK).width, weights_NK);
  stream.run([=, this] {
    const auto* const places = pointer<std::int32_t>(places_NK);
    const float* const weights = pointer<float>(weights_NK);
    const auto lease = scratch_.lease(threads_ * sizes.width * size_of(DType::kF32));
    const std::int64_t pieces = (sizes.tokens + kRowsOfPiece - 1) / kRowsOfPiece;
    with_loops(loops_, x_NC.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
      parallel_for(threads_, pieces, [&](std::int64_t piece, int worker) {
        float* const sums = lease.as<float>() + worker * sizes.width;
        const std::int64_t begin = piece * kRowsOfPiece;
        for (std::int64_t n = begin; n < std::min(begin + kRowsOfPiece, sizes.tokens); ++n) {
          T* const x = pointer<T>(x_NC) + n * sizes.width;
          if (write == Write::kAdd) {
            loops.cast_to_f32(x, sums, sizes.width);
          } else {
            std::fill_n(sums, sizes.width, 0.0F);
          }
          for (std::int64_t slot = n * sizes.per_token; slot < (n + 1) * sizes.per_token; ++slot) {
            if (places[slot] >= 0) {
              loops.scale_to_f32(pointer<T>(y_MC) + places[slot] * sizes.width,
                                 weights == nullptr ? 1.0F : weights[slot], sums, /*adds=*/true,
                                 sizes.width);
            }
          }
          store_row(loops_, sums, x, sizes.width);
        }
      });
    });
  });
}

void CpuOps::weighted_rows_backward(const WeightedRowsBackward& back, Stream& stream) {
  const RowSizes sizes = expect_weighted_rows(back);
  stream.run([=, this] {
    const std::int64_t outputs = back.bias_EC.empty() ? 0 : as_matrix(back.bias_EC).width;
    const std::int64_t floats = std::max(sizes.width, outputs);
    const auto lease = scratch_.lease(threads_ * floats * size_of(DType::kF32));
    const std::int64_t pieces = (sizes.rows + kRowsOfPiece - 1) / kRowsOfPiece;
    with_loops(loops_, back.row_MF.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
      const auto product = [&](const T* a, const T* b, std::int64_t n, float* widened) {
        float sum = 0.0F;
        loops.cast_to_f32(a, widened, n);
        loops.row_products(widened, b, nullptr, n, 1, &sum);
        return sum;
      };
      parallel_for(threads_, pieces, [&](std::int64_t piece, int worker) {
        float* const widened = lease.as<float>() + worker * floats;
        const std::int64_t begin = piece * kRowsOfPiece;
        for (std::int64_t m = begin; m < std::min(begin + kRowsOfPiece, sizes.rows); ++m) {
          const std::int32_t slot = pointer<std::int32_t>(back.slots_M)[m];
          T* const d_row = pointer<T>(back.d_row_MF) + m * sizes.width;
          float d_weight =
              product(d_row, pointer<T>(back.row_MF) + m * sizes.width, sizes.width, widened);
          if (outputs > 0) {
            const std::int64_t e = pointer<std::int32_t>(back.chosen_NK)[slot];
            d_weight += product(pointer<T>(back.dy_MC) + m * outputs,
                                pointer<T>(back.bias_EC) + e * outputs, outputs, widened);
          }
          pointer<float>(back.d_weights_NK)[slot] = d_weight;
          scale_row(loops, d_row, pointer<float>(back.weights_NK)[slot], d_row, sizes.width);
        }
      });
    });
  });
}

// Products of a few hundred rows, which all threads share.
void CpuOps::grouped_forward(ConstTensor x_MI,
                             ConstTensor w_EOI,
                             ConstTensor bias_EO,
                             ExpertRows rows_E,
                             Tensor y_MO,
                             Stream& stream) {
  stream.run([=, this] {
    grouped_.begin();
    for_each_expert(rows_E, w_EOI.dim(0), x_MI.dim(0), [&](auto expert, auto begin, auto count) {
      const Tensor y = y_MO.rows(begin, begin + count);
      const ConstTensor x = x_MI.rows(begin, begin + count);
      GroupedMatmul::for_each_part(
          count, kMostRowsOfTask, x.dtype(), [&](std::int64_t first, std::int64_t size) {
            grouped_.add({.product = forward_product(
                              x.rows(first, first + size), of_expert(w_EOI, expert),
                              of_expert(bias_EO, expert), y.rows(first, first + size))});
          });
    });
    grouped_.run();
  });
}

void CpuOps::grouped_backward_input(
    ConstTensor dy_MO, ConstTensor w_EOI, ExpertRows rows_E, Tensor dx_MI, Stream& stream) {
  stream.run([=, this] {
    grouped_.begin();
    for_each_expert(rows_E, w_EOI.dim(0), dy_MO.dim(0), [&](auto expert, auto begin, auto count) {
      const Tensor dx = dx_MI.rows(begin, begin + count);
      const ConstTensor dy = dy_MO.rows(begin, begin + count);
      GroupedMatmul::for_each_part(
          count, kMostRowsOfTask, dy.dtype(), [&](std::int64_t first, std::int64_t size) {
            grouped_.add({.product = backward_input_product(dy.rows(first, first + size),
                                                            of_expert(w_EOI, expert),
                                                            dx.rows(first, first + size))});
          });
    });
    grouped_.run();
  });
}

void CpuOps::grouped_backward_weight(ConstTensor dy_MO,
                                     ConstTensor x_MI,
                                     ExpertRows rows_E,
                                     Tensor dw_EOI,
                                     Write write,
                                     Stream& stream) {
  stream.run([=, this] {
    grouped_.begin();
    for_each_expert(rows_E, dw_EOI.dim(0), dy_MO.dim(0), [&](auto expert, auto begin, auto count) {
      grouped_.add({.product = backward_weight_product(dy_MO.rows(begin, begin + count),
                                                       x_MI.rows(begin, begin + count),
                                                       of_expert(dw_EOI, expert), write),
                    .sums = true});
    });
    grouped_.run();
  });
}

void CpuOps::grouped_backward_bias(
    ConstTensor dy_MO, ExpertRows rows_E, Tensor dbias_EO, Write write, Stream& stream) {
  for_each_expert(rows_E, dbias_EO.dim(0), dy_MO.dim(0), [&](auto expert, auto begin, auto count) {
    linear_backward_bias(dy_MO.rows(begin, begin + count), of_expert(dbias_EO, expert), write,
                         stream);
  });
}

}  // namespace dstrain
