// ByteTicks: round numbers of bytes for an axis from 0 up, in the largest binary unit that gives
// numbers above 1: "0", "20 GiB", "40 GiB". Some three to six of them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dstrain {

class ByteTicks {
 public:
  /// `top_bytes`, above 0, is where the axis ends.
  explicit ByteTicks(double top_bytes);

  [[nodiscard]] int count() const { return count_; }
  [[nodiscard]] double bytes(int index) const { return index * step_ * unit_bytes_; }
  [[nodiscard]] std::string text(int index) const;

 private:
  std::string_view unit_ = "bytes";
  double unit_bytes_ = 1.0;
  double step_ = 1.0;  ///< in units
  int decimals_ = 0;
  int count_ = 1;
};

}  // namespace dstrain
