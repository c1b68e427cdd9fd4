// HangWatch: says when a job stands still, and which rank the others wait for.
//
// A job stands still when no rank has finished a step, or anything else that has a name, for
// longer than the ranks that are waited for may take:
//   training     max(60 s, 5 × the longest step so far), or what the user said
//   starting     30 min, until a rank's first step is finished
//   evaluating   max(10 min, 5 × the longest evaluation so far)
//   saving       max(30 min, 5 × the longest save so far), or what the user said; ending too
// Pure arithmetic on what the ranks say (RankStatus): no process, no clock of its own.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "launcher/supervision/rank_observation.h"

namespace dstrain::launcher {

struct HangLimits {
  using Duration = std::chrono::nanoseconds;
  std::optional<Duration> step{};  ///< the user's limit of a step; none: it is learned
  Duration least_step = std::chrono::seconds{60};
  Duration start = std::chrono::minutes{30};
  Duration least_evaluation = std::chrono::minutes{10};
  std::optional<Duration> save{};  ///< the same of a save, and of ending
  Duration least_save = std::chrono::minutes{30};
  int learned_factor = 5;
};

struct Hang {
  std::vector<const ProcessSpec*> absent;  ///< the ranks that did not arrive; all, if none is known
  std::string text;                        ///< one sentence
};

class HangWatch {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  explicit HangWatch(const HangLimits& limits) : limits_(limits) {}

  /// Call about once a second with all ranks that run. Says so once the job hangs; nothing as long
  /// as no rank has a status at all. Time in which nobody called (the launcher itself was stopped,
  /// and perhaps all the machine) does not count.
  std::optional<Hang> observe(TimePoint now, std::span<const RankObservation> ranks);

 private:
  using Duration = std::chrono::nanoseconds;
  struct Limit {
    Duration duration{};
    std::string why;
  };
  /// A rank's CPU time when the job was last seen to make progress.
  struct CpuMark {
    TimePoint at{};
    Duration cpu{};
  };

  [[nodiscard]] Limit limit_of(const std::optional<RankStatus>& status,
                               std::span<const RankObservation> ranks) const;
  [[nodiscard]] std::string describe_absent(const RankObservation& rank,
                                            TimePoint now,
                                            bool like_all) const;

  const HangLimits limits_;
  std::optional<TimePoint> first_;  ///< of the observations since the last gap
  TimePoint last_{};
  std::map<int, CpuMark> cpu_marks_;
};

}  // namespace dstrain::launcher
