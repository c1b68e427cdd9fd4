// The checks that every operation makes before it touches memory: dtypes, sizes, whether a tensor
// is given.
#pragma once

#include <string_view>

#include "kernels/core/check.h"
#include "kernels/core/tensor.h"

namespace dstrain {

inline void expect_compute_dtype(DType dtype, std::string_view name) {
  check(dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16,
        "{} is {}, expected f32, bf16 or f16", name, name_of(dtype));
}

template <typename T>
T* pointer(const Tensor& tensor) {
  return static_cast<T*>(tensor.data());
}
template <typename T>
const T* pointer(const ConstTensor& tensor) {
  return static_cast<const T*>(tensor.data());
}

/// Checks that the tensor is given, of this dtype, with this many elements.
inline void expect(const ConstTensor& tensor,
                   std::string_view name,
                   DType dtype,
                   std::int64_t numel) {
  check(tensor.dtype() == dtype && tensor.numel() == numel,
        "{} is {} of shape {}, expected {} with {} elements", name, name_of(tensor.dtype()),
        tensor.shape().to_string(), name_of(dtype), numel);
  check(!tensor.empty() || numel == 0, "{} has no memory", name);
}

/// Does the same as expect(), but allows no tensor at all.
inline void expect_optional(const ConstTensor& tensor,
                            std::string_view name,
                            DType dtype,
                            std::int64_t numel) {
  if (!tensor.empty()) {
    expect(tensor, name, dtype, numel);
  }
}

/// The number of elements of all dims but the last, and of the last.
struct Matrix {
  std::int64_t rows;
  std::int64_t width;
};
inline Matrix as_matrix(const ConstTensor& tensor) {
  const int rank = tensor.shape().rank();
  check(rank >= 1, "a matrix is wanted, not a scalar");
  const std::int64_t width = tensor.dim(rank - 1);
  return {width == 0 ? 0 : tensor.numel() / width, width};
}

}  // namespace dstrain
