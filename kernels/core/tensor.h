// Tensor and ConstTensor: {pointer, dtype, shape}, dense and row-major. They never own memory
// (the Arena does) and are cheap to copy.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/core/check.h"
#include "kernels/core/dtype.h"
#include "kernels/core/shape.h"

namespace dstrain {

/// Shared by both views; Void is `void` or `const void`, Byte likewise.
template <typename Void, typename Byte>
class BasicTensor {
 public:
  BasicTensor() = default;
  BasicTensor(Void* data, DType dtype, Shape shape) : data_(data), dtype_(dtype), shape_(shape) {}
  /// A mutable view may be read as a constant one.
  template <typename OtherVoid, typename OtherByte>
  requires std::is_convertible_v<OtherVoid*, Void*>
  BasicTensor(  // NOLINT(google-explicit-constructor)
      const BasicTensor<OtherVoid, OtherByte>& other)
      : data_(other.data()), dtype_(other.dtype()), shape_(other.shape()) {}

  [[nodiscard]] Void* data() const { return data_; }
  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] const Shape& shape() const { return shape_; }
  [[nodiscard]] std::int64_t dim(int index) const { return shape_[index]; }
  [[nodiscard]] std::int64_t numel() const { return shape_.numel(); }
  [[nodiscard]] std::int64_t bytes() const { return numel() * size_of(dtype_); }
  [[nodiscard]] bool empty() const { return data_ == nullptr; }

  /// Rows [begin, end) of the first dim.
  [[nodiscard]] BasicTensor rows(std::int64_t begin, std::int64_t end) const {
    check(shape_.rank() >= 1 && 0 <= begin && begin <= end && end <= shape_[0],
          "rows [{}, {}) of a tensor of shape {}", begin, end, shape_.to_string());
    Shape shape{end - begin};
    std::int64_t row = 1;
    for (int dim = 1; dim < shape_.rank(); ++dim) {
      shape.push_back(shape_[dim]);
      row *= shape_[dim];
    }
    return {static_cast<Byte*>(data_) + begin * row * size_of(dtype_), dtype_, shape};
  }
  /// Elements [begin, end) of the flattened tensor, as a 1-D view.
  [[nodiscard]] BasicTensor flat(std::int64_t begin, std::int64_t end) const {
    check(0 <= begin && begin <= end && end <= numel(), "elements [{}, {}) of a tensor of shape {}",
          begin, end, shape_.to_string());
    return {static_cast<Byte*>(data_) + begin * size_of(dtype_), dtype_, Shape{end - begin}};
  }
  /// The same elements under another shape.
  [[nodiscard]] BasicTensor view(Shape shape) const {
    check(shape.numel() == numel(), "cannot view {} as {}", shape_.to_string(), shape.to_string());
    return {data_, dtype_, shape};
  }
  /// The elements as a span of a host type, whose dtype is checked.
  template <typename T>
  [[nodiscard]] auto as() const {
    check(dtype_ == DTypeOf<T>::value, "tensor is {}, not {}", name_of(dtype_),
          name_of(DTypeOf<T>::value));
    using Element = std::conditional_t<std::is_const_v<Void>, const T, T>;
    return std::span<Element>(static_cast<Element*>(data_), static_cast<std::size_t>(numel()));
  }

 private:
  Void* data_ = nullptr;
  DType dtype_ = DType::kF32;
  Shape shape_{0};
};

using Tensor = BasicTensor<void, std::byte>;
using ConstTensor = BasicTensor<const void, const std::byte>;

}  // namespace dstrain
