// What each of ZeRO's stages divides among the ranks that see different data (Rajbhandari et al.
// 2020). The number of a stage (zero_optimization.stage) is compared here and nowhere else: the
// keys of the config ask what is cut, and so does the plan, which makes a Placement of it
// (engine/plan/placement.h).
#pragma once

#include <algorithm>
#include <array>
#include <vector>

namespace dstrain {

inline constexpr std::array kZeroStages = {0, 1, 2, 3};

struct ZeroCuts {
  bool states = false;
  bool gradients = false;
  bool parameters = false;
};

constexpr ZeroCuts cuts_of(int stage) {
  return {.states = stage >= 1, .gradients = stage >= 2, .parameters = stage >= 3};
}

/// The stages that cut more than this one, in order.
inline std::vector<int> stages_beyond(int stage) {
  return {std::upper_bound(kZeroStages.begin(), kZeroStages.end(), stage), kZeroStages.end()};
}

}  // namespace dstrain
