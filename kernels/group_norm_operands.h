// Turns the operands of a norm of groups of columns into what its loops take, with the checks that
// all devices share.
#pragma once

#include "kernels/core/expect.h"
#include "kernels/group_norm.h"
#include "kernels/group_norm_rows.h"

namespace dstrain {

/// The number of groups of `width` columns, which must be whole.
inline std::int64_t groups_of(const ConstColumns& x, std::int64_t width) {
  expect_compute_dtype(x.dtype(), "group norm: x");
  check(width >= 1 && x.width() % width == 0, "group norm: groups of {} in {} columns", width,
        x.width());
  return x.width() / width;
}

inline void expect_as(const ConstColumns& other, std::string_view name, const ConstColumns& x) {
  check(other.dtype() == x.dtype() && other.rows() == x.rows() && other.width() == x.width(),
        "group norm: {} is {} × {} of {}, x {} × {} of {}", name, other.rows(), other.width(),
        name_of(other.dtype()), x.rows(), x.width(), name_of(x.dtype()));
}

template <typename T>
GroupNormRows<T> squares_rows(const ConstColumns& x, std::int64_t width, const Tensor& squares_NG) {
  const std::int64_t groups = groups_of(x, width);
  expect(squares_NG, "group norm: squares", DType::kF32, x.rows() * groups);
  return {.rows = x.rows(),
          .groups = groups,
          .width = width,
          .inverse_norm_width = 0.0F,
          .epsilon = 0.0F,
          .weight_offset = 0.0F,
          .x = x.begin<T>(),
          .x_stride = x.stride(),
          .dy = nullptr,
          .dy_stride = 0,
          .weight = nullptr,
          .squares = nullptr,
          .products = nullptr,
          .out = nullptr,
          .out_stride = 0};
}

template <typename T>
GroupNormRows<T> products_rows(const ConstColumns& dy,
                               const ConstColumns& x,
                               const ConstTensor& weight_W,
                               float weight_offset,
                               const Tensor& products_NG) {
  expect(weight_W, "group norm: weight", x.dtype(), weight_W.numel());
  GroupNormRows<T> rows = squares_rows<T>(x, weight_W.numel(), products_NG);
  expect_as(dy, "dy", x);
  rows.dy = dy.begin<T>();
  rows.dy_stride = dy.stride();
  rows.weight = pointer<T>(weight_W);
  rows.weight_offset = weight_offset;
  return rows;
}

/// The rows that forward and backward have in common.
template <typename T, typename Norm>
GroupNormRows<T> normalised_rows(const Norm& norm, const Columns& out) {
  const ConstColumns& x = norm.x;
  const std::int64_t width = norm.weight_W.numel();
  const std::int64_t groups = groups_of(x, width);
  expect(norm.weight_W, "group norm: weight", x.dtype(), width);
  expect(norm.squares_NG, "group norm: squares", DType::kF32, x.rows() * groups);
  expect_as(out, "the output", x);
  check(norm.norm_width >= width, "group norm: a norm over {} of which this rank has {}",
        norm.norm_width, width);
  return {.rows = x.rows(),
          .groups = groups,
          .width = width,
          .inverse_norm_width = 1.0F / static_cast<float>(norm.norm_width),
          .epsilon = norm.epsilon,
          .weight_offset = norm.weight_offset,
          .x = x.begin<T>(),
          .x_stride = x.stride(),
          .dy = nullptr,
          .dy_stride = 0,
          .weight = pointer<T>(norm.weight_W),
          .squares = pointer<float>(norm.squares_NG),
          .products = nullptr,
          .out = out.begin<T>(),
          .out_stride = out.stride()};
}

template <typename T>
GroupNormRows<T> forward_rows(const GroupNormForward& norm) {
  return normalised_rows<T>(norm, norm.y);
}

template <typename T>
GroupNormRows<T> backward_rows(const GroupNormBackward& norm) {
  GroupNormRows<T> rows = normalised_rows<T>(norm, norm.dx);
  expect_as(norm.dy, "dy", norm.x);
  expect(norm.products_NG, "group norm: products", DType::kF32, norm.squares_NG.numel());
  expect(norm.dweight_W, "group norm: dweight", DType::kF32, norm.weight_W.numel());
  rows.dy = norm.dy.begin<T>();
  rows.dy_stride = norm.dy.stride();
  rows.products = pointer<float>(norm.products_NG);
  return rows;
}

}  // namespace dstrain
