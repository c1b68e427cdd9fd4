// Rows of tokens in the order of the experts that they chose: gathered, multiplied, and added up.
// Each expert's products are cuBLASLt's, enqueued one after another, and cut by rows: descriptions
// are kept for each size, which would be a new one in every step. For the same reason nothing is
// timed for them.
//
// N tokens, K chosen experts of each, M rows, E experts, C width, I / O inputs and outputs
#include "kernels/cuda/device/expert_rows.h"

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/typed.h"
#include "kernels/matrix_product.h"
#include "kernels/routing_operands.h"

namespace dstrain {
namespace {

/// Calls visit(first, size) for the whole units of the rows, and for what is left.
template <typename Visit>
void for_each_part(std::int64_t rows, Visit&& visit) {
  constexpr std::int64_t kRowUnit = 64;
  const std::int64_t whole = rows / kRowUnit * kRowUnit;
  if (whole > 0) visit(std::int64_t{0}, whole);
  if (whole < rows) visit(whole, rows - whole);
}

}  // namespace

void CudaOps::gather_rows(ConstTensor x_NC,
                          ConstTensor slots_M,
                          std::int64_t per_token,
                          ConstTensor weights_NK,
                          Tensor y_MC,
                          Stream& stream) {
  const RowSizes sizes =
      expect_rows(x_NC, y_MC, slots_M, as_matrix(y_MC).rows, per_token, weights_NK);
  with_dtype(x_NC.dtype(), [&]<typename T>() {
    cuda::gather_rows<T>(on(stream), {.rows = sizes.rows,
                                      .per_token = per_token,
                                      .width = sizes.width,
                                      .slots = pointer<std::int32_t>(slots_M),
                                      .weights = pointer<float>(weights_NK),
                                      .x = pointer<T>(x_NC),
                                      .y = pointer<T>(y_MC)});
  });
}

void CudaOps::sum_rows(ConstTensor y_MC,
                       ConstTensor places_NK,
                       ConstTensor weights_NK,
                       Tensor x_NC,
                       Write write,
                       Stream& stream) {
  const RowSizes sizes =
      expect_rows(x_NC, y_MC, places_NK, places_NK.numel(), as_matrix(places_NK).width, weights_NK);
  with_dtype(x_NC.dtype(), [&]<typename T>() {
    cuda::sum_rows<T>(on(stream), {.tokens = sizes.tokens,
                                   .per_token = sizes.per_token,
                                   .width = sizes.width,
                                   .places = pointer<std::int32_t>(places_NK),
                                   .weights = pointer<float>(weights_NK),
                                   .y = pointer<T>(y_MC),
                                   .x = pointer<T>(x_NC),
                                   .adds = write == Write::kAdd});
  });
}

void CudaOps::weighted_rows_backward(const WeightedRowsBackward& back, Stream& stream) {
  const RowSizes sizes = expect_weighted_rows(back);
  with_dtype(back.row_MF.dtype(), [&]<typename T>() {
    cuda::weighted_rows_backward<T>(
        on(stream), {.rows = sizes.rows,
                     .width = sizes.width,
                     .outputs = back.bias_EC.empty() ? 0 : as_matrix(back.bias_EC).width,
                     .slots = pointer<std::int32_t>(back.slots_M),
                     .weights = pointer<float>(back.weights_NK),
                     .row = pointer<T>(back.row_MF),
                     .d_row = pointer<T>(back.d_row_MF),
                     .dy = pointer<T>(back.dy_MC),
                     .bias = pointer<T>(back.bias_EC),
                     .chosen = pointer<std::int32_t>(back.chosen_NK),
                     .d_weights = pointer<float>(back.d_weights_NK)});
  });
}

void CudaOps::grouped_forward(ConstTensor x_MI,
                              ConstTensor w_EOI,
                              ConstTensor bias_EO,
                              ExpertRows rows_E,
                              Tensor y_MO,
                              Stream& stream) {
  for_each_expert(rows_E, w_EOI.dim(0), x_MI.dim(0), [&](auto expert, auto begin, auto count) {
    for_each_part(count, [&](std::int64_t first, std::int64_t size) {
      const std::int64_t row = begin + first;
      multiply_forward(x_MI.rows(row, row + size), of_expert(w_EOI, expert),
                       of_expert(bias_EO, expert), y_MO.rows(row, row + size), /*is_routed=*/true,
                       stream);
    });
  });
}

void CudaOps::grouped_backward_input(
    ConstTensor dy_MO, ConstTensor w_EOI, ExpertRows rows_E, Tensor dx_MI, Stream& stream) {
  for_each_expert(rows_E, w_EOI.dim(0), dy_MO.dim(0), [&](auto expert, auto begin, auto count) {
    for_each_part(count, [&](std::int64_t first, std::int64_t size) {
      const std::int64_t row = begin + first;
      multiply_routed(backward_input_product(dy_MO.rows(row, row + size), of_expert(w_EOI, expert),
                                             dx_MI.rows(row, row + size)),
                      stream);
    });
  });
}

void CudaOps::grouped_backward_weight(ConstTensor dy_MO,
                                      ConstTensor x_MI,
                                      ExpertRows rows_E,
                                      Tensor dw_EOI,
                                      Write write,
                                      Stream& stream) {
  for_each_expert(rows_E, dw_EOI.dim(0), dy_MO.dim(0), [&](auto expert, auto begin, auto count) {
    const Tensor dw = of_expert(dw_EOI, expert);
    Write next = write;
    if (count == 0) {
      multiply_routed(
          backward_weight_product(dy_MO.rows(begin, begin), x_MI.rows(begin, begin), dw, next),
          stream);
    }
    for_each_part(count, [&](std::int64_t first, std::int64_t size) {
      const std::int64_t row = begin + first;
      multiply_routed(backward_weight_product(dy_MO.rows(row, row + size),
                                              x_MI.rows(row, row + size), dw, next),
                      stream);
      next = Write::kAdd;
    });
  });
}

void CudaOps::grouped_backward_bias(
    ConstTensor dy_MO, ExpertRows rows_E, Tensor dbias_EO, Write write, Stream& stream) {
  for_each_expert(rows_E, dbias_EO.dim(0), dy_MO.dim(0), [&](auto expert, auto begin, auto count) {
    linear_backward_bias(dy_MO.rows(begin, begin + count), of_expert(dbias_EO, expert), write,
                         stream);
  });
}

}  // namespace dstrain
