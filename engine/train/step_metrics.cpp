#include "engine/train/step_metrics.h"

#include <algorithm>

namespace dstrain {

std::size_t fullest_rank(const std::vector<RankMemory>& by_rank) {
  const auto fullest = std::max_element(
      by_rank.begin(), by_rank.end(),
      [](const RankMemory& a, const RankMemory& b) { return a.peak_bytes < b.peak_bytes; });
  return static_cast<std::size_t>(fullest - by_rank.begin());
}

}  // namespace dstrain
