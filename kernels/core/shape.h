// Shape: up to four extents, kept inline. Row-major and dense everywhere in dstrain: no strides.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "kernels/core/check.h"

namespace dstrain {

class Shape {
 public:
  static constexpr int kMaxRank = 4;

  Shape() = default;
  Shape(std::initializer_list<std::int64_t> extents) {
    check(extents.size() <= kMaxRank, "a shape has at most 4 dims, not {}", extents.size());
    for (const std::int64_t extent : extents) {
      push_back(extent);
    }
  }

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] std::int64_t operator[](int dim) const {
    check(dim >= 0 && dim < rank_, "dim {} of a shape with {} dims", dim, rank_);
    return extents_[static_cast<std::size_t>(dim)];
  }
  /// The number of elements; 1 for a scalar (rank 0).
  [[nodiscard]] std::int64_t numel() const {
    std::int64_t product = 1;
    for (int dim = 0; dim < rank_; ++dim) {
      product *= extents_[static_cast<std::size_t>(dim)];
    }
    return product;
  }
  void push_back(std::int64_t extent) {
    check(rank_ < kMaxRank && extent >= 0, "cannot append extent {} to {}", extent, to_string());
    extents_[static_cast<std::size_t>(rank_++)] = extent;
  }

  /// "[2, 3]", as messages print it.
  [[nodiscard]] std::string to_string() const {
    std::string text = "[";
    for (int dim = 0; dim < rank_; ++dim) {
      text += (dim == 0 ? "" : ", ") + std::to_string(extents_[static_cast<std::size_t>(dim)]);
    }
    return text + "]";
  }

  friend bool operator==(const Shape&, const Shape&) = default;

 private:
  std::array<std::int64_t, kMaxRank> extents_{};
  int rank_ = 0;
};

}  // namespace dstrain
