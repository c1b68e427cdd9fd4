// UnitSegments: the parameters of every unit, joined where neighbours are updated alike, and the
// part of a UnitState that belongs to each. All optimizers share it.
#pragma once

#include <algorithm>
#include <vector>

#include "engine/optim/optimizer.h"
#include "kernels/optimizers.h"

namespace dstrain {

/// One parameter, or neighbouring ones of one kind.
struct UnitSegment {
  int first_param = 0;         ///< index within the unit
  Range range;                 ///< of the unit's flat buffer
  bool decays = false;         ///< by the run's DecayRule
  double rate_scale = 1.0;     ///< ParamDecl::rate_scale
  bool hidden_matrix = false;  ///< ParamDecl::hidden_matrix
};

enum class Join : std::uint8_t { kAlike, kNever };

class UnitSegments {
 public:
  UnitSegments(const Blueprint& blueprint, DecayRule rule, Join join);

  [[nodiscard]] const std::vector<UnitSegment>& of(int unit) const {
    return segments_.at(static_cast<std::size_t>(unit));
  }

 private:
  std::vector<std::vector<UnitSegment>> segments_;  // by unit
};

/// The range that both have; empty where they do not meet.
inline Range intersection(Range a, Range b) {
  const std::int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

/// Elements `part` of a tensor that holds elements `range` of its unit; empty for an empty tensor.
template <typename AnyTensor>
AnyTensor part_of(const AnyTensor& tensor, Range range, Range part) {
  return tensor.empty() ? tensor : tensor.flat(part.begin - range.begin, part.end - range.begin);
}

/// Elements `part` of everything that `state` has.
OptimizerTensors tensors_of(const UnitState& state, Range part, const UpdateParams& params);

/// The random bits for rounding a unit; `key` is UnitState::noise_key.
inline RoundingNoise noise_of(std::uint32_t key,
                              std::int64_t first_element,
                              const UpdateParams& params) {
  const auto update = static_cast<std::uint32_t>(params.update);
  return {.seed = params.seed,
          .stream = (static_cast<std::uint64_t>(key) << 32) | update,
          .first_element = first_element};
}

}  // namespace dstrain
