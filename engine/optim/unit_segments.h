// UnitSegments: the parameters of every unit, joined where neighbours are updated alike, and the
// part of a UnitState that belongs to each. What optimizers that work element by element share.
#pragma once

#include <algorithm>
#include <vector>

#include "engine/optim/optimizer.h"

namespace dstrain {

/// Neighbouring parameters of one kind.
struct UnitSegment {
  Range range;                 ///< of the unit's flat buffer
  bool decays = false;         ///< ParamDecl::decays
  bool hidden_matrix = false;  ///< ParamDecl::hidden_matrix
};

class UnitSegments {
 public:
  explicit UnitSegments(const Blueprint& blueprint);

  [[nodiscard]] const std::vector<UnitSegment>& of(int unit) const {
    return segments_.at(static_cast<std::size_t>(unit));
  }

 private:
  std::vector<std::vector<UnitSegment>> segments_;  // by unit
};

inline Range intersection(Range a, Range b) {
  const std::int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

/// Elements `part` of a tensor that holds elements `range` of its unit; none of an empty tensor.
template <typename AnyTensor>
AnyTensor part_of(const AnyTensor& tensor, Range range, Range part) {
  return tensor.empty() ? tensor : tensor.flat(part.begin - range.begin, part.end - range.begin);
}

}  // namespace dstrain
