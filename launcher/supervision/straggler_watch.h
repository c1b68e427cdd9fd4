// StragglerWatch: names the ranks that the others wait for step after step: those that compute
// longer than 1.5 × the median of the other ranks that do the same work (one pipeline stage). Time
// spent waiting for others does not count, so a rank that waits for a slow one is never named.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "launcher/supervision/rank_observation.h"

namespace dstrain::launcher {

struct StragglerLimits {
  double factor = 1.5;
  double factor_to_clear = 1.25;  ///< below it, a rank that was named has recovered
  std::int64_t steps = 20;        ///< compared over at least so many of every rank
  /// The rank must also be slow for at least so long: over steps of a millisecond any machine is
  /// unfair.
  std::chrono::nanoseconds least_time = std::chrono::seconds{5};
};

class StragglerWatch {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  explicit StragglerWatch(const StragglerLimits& limits) : limits_(limits) {}

  /// Call about once a second with all ranks that run. Returns news, one sentence each: a rank has
  /// become slow, or is no longer slow.
  std::vector<std::string> observe(TimePoint now, std::span<const RankObservation> ranks);

 private:
  struct Mark {
    std::int64_t num_steps = 0;
    std::chrono::nanoseconds computing{};
  };
  void mark_all(TimePoint now, std::span<const RankObservation> ranks);

  const StragglerLimits limits_;
  TimePoint marked_at_{};
  std::map<int, Mark> marks_;  ///< by rank; empty before the first
  std::set<int> slow_;
};

}  // namespace dstrain::launcher
