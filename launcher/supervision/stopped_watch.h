// StoppedWatch: tells at once when a rank is stopped (SIGSTOP, a terminal, a debugger), whatever it
// was doing. A stopped rank is not a hang yet, since it may be continued; the limits of
// hang_watch.h hold for it as for any other. But nobody should have to wait for them to learn why
// the job stands still.
#pragma once

#include <chrono>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "launcher/supervision/rank_observation.h"

namespace dstrain::launcher {

class StoppedWatch {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  /// A shorter stop, as of a tool that looks at the process, is nobody's business.
  static constexpr std::chrono::seconds kTold{2};

  /// Call about once a second with all ranks that run. A sentence for each rank that has been
  /// stopped for kTold, and one when such a rank continues; each once.
  std::vector<std::string> observe(TimePoint now, std::span<const RankObservation> ranks);

  /// The time for which the rank that has been stopped for longest was seen so at the last look; 0
  /// if there is none.
  [[nodiscard]] std::chrono::nanoseconds longest() const { return longest_; }

 private:
  struct Stop {
    TimePoint since;
    bool is_told = false;
  };
  std::map<int, Stop> stops_;  // by rank
  std::chrono::nanoseconds longest_{};
};

}  // namespace dstrain::launcher
