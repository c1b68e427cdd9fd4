#include "launcher/supervision/stopped_watch.h"

#include <algorithm>

#include <fmt/format.h>

namespace dstrain::launcher {

std::vector<std::string> StoppedWatch::observe(TimePoint now,
                                               std::span<const RankObservation> ranks) {
  std::vector<std::string> told;
  std::map<int, Stop> still;
  longest_ = {};
  for (const RankObservation& rank : ranks) {
    const auto known = stops_.find(rank.spec->rank);
    if (!rank.status || !rank.status->process.is_stopped()) {
      if (known != stops_.end() && known->second.is_told) {
        told.push_back(fmt::format("{}, continues after {}", name_of(*rank.spec, rank.pid),
                                   text_of(now - known->second.since)));
      }
      continue;
    }
    Stop stop = known == stops_.end() ? Stop{.since = now} : known->second;
    longest_ = std::max<std::chrono::nanoseconds>(longest_, now - stop.since);
    if (!stop.is_told && now - stop.since >= kTold) {
      stop.is_told = true;
      const std::string when = rank.status->has_spoken
                                   ? fmt::format("while {}, after step {}",
                                                 name_of(rank.status->phase), rank.status->step)
                                   : "and has said nothing since it was started";
      told.push_back(fmt::format(
          "{}, {} {}; all ranks wait for it until somebody there continues it (kill -CONT {}), or "
          "the "
          "job's limit ends it",
          name_of(*rank.spec, rank.pid), describe(rank.status->process), when, rank.pid));
    }
    still[rank.spec->rank] = stop;
  }
  stops_ = std::move(still);
  return told;
}

}  // namespace dstrain::launcher
