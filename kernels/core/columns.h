// Columns: some neighbouring columns of a matrix, such as the queries in rows q‖k‖v. Where Tensor
// is dense, this is a view whose rows may lie further apart than they are long. It owns nothing.
#pragma once

#include "kernels/core/tensor.h"

namespace dstrain {

/// Matrix is Tensor or ConstTensor.
template <typename Matrix>
class BasicColumns {
 public:
  BasicColumns() = default;
  /// Columns [first, first + width) of a matrix, whose rows are its last dim.
  BasicColumns(Matrix matrix, std::int64_t first, std::int64_t width)
      : matrix_(matrix), first_(first), width_(width) {
    check(0 <= first && 0 <= width && first + width <= stride(),
          "columns [{}, {}) of a matrix of shape {}", first, first + width,
          matrix.shape().to_string());
  }
  /// All columns.
  template <typename Other>
  requires std::is_convertible_v<const Other&, Matrix> BasicColumns(
      const Other& matrix)  // NOLINT(google-explicit-constructor)
      : BasicColumns(matrix, 0, matrix.dim(matrix.shape().rank() - 1)) {}
  /// A mutable view may be read as a constant one.
  template <typename Other>
  requires std::is_convertible_v<Other, Matrix> BasicColumns(
      const BasicColumns<Other>& other)  // NOLINT(google-explicit-constructor)
      : matrix_(other.matrix()), first_(other.first()), width_(other.width()) {}

  [[nodiscard]] const Matrix& matrix() const { return matrix_; }
  [[nodiscard]] std::int64_t first() const { return first_; }
  [[nodiscard]] std::int64_t width() const { return width_; }
  /// The number of elements from one row to the next.
  [[nodiscard]] std::int64_t stride() const { return matrix_.dim(matrix_.shape().rank() - 1); }
  [[nodiscard]] std::int64_t rows() const { return stride() == 0 ? 0 : matrix_.numel() / stride(); }
  [[nodiscard]] DType dtype() const { return matrix_.dtype(); }
  [[nodiscard]] bool empty() const { return matrix_.empty(); }
  /// The first element of the first row.
  template <typename T>
  [[nodiscard]] auto begin() const {
    using Element =
        std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(matrix_.data())>>,
                           const T, T>;
    return static_cast<Element*>(matrix_.data()) + first_;
  }

 private:
  Matrix matrix_{};
  std::int64_t first_ = 0;
  std::int64_t width_ = 0;
};

using Columns = BasicColumns<Tensor>;
using ConstColumns = BasicColumns<ConstTensor>;

}  // namespace dstrain
