#include "launcher/supervision/straggler_watch.h"

#include <algorithm>

#include <fmt/format.h>

namespace dstrain::launcher {
namespace {

/// The median of at least one number; for an even count, the mean of the middle two.
double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace

void StragglerWatch::mark_all(TimePoint now, std::span<const RankObservation> ranks) {
  marked_at_ = now;
  marks_.clear();
  for (const RankObservation& rank : ranks)
    marks_[rank.spec->rank] = {rank.status->num_steps, rank.status->computing};
}

std::vector<std::string> StragglerWatch::observe(TimePoint now,
                                                 std::span<const RankObservation> ranks) {
  // The first step is left out, since it warms up caches.
  const bool all_step = std::all_of(ranks.begin(), ranks.end(), [](const RankObservation& rank) {
    return rank.status && rank.status->num_steps > 0;
  });
  if (ranks.size() < 2 || !all_step) return {};
  if (marks_.size() != ranks.size()) {
    mark_all(now, ranks);
    return {};
  }
  const auto steps_of = [&](const RankObservation& rank) {
    return rank.status->num_steps - marks_[rank.spec->rank].num_steps;
  };
  const bool enough = std::all_of(ranks.begin(), ranks.end(), [&](const RankObservation& rank) {
    return steps_of(rank) >= limits_.steps;
  });
  if (!enough || now - marked_at_ < limits_.least_time) return {};

  const auto seconds_a_step = [&](const RankObservation& rank) {
    const auto computed = rank.status->computing - marks_[rank.spec->rank].computing;
    return std::chrono::duration<double>(computed).count() / static_cast<double>(steps_of(rank));
  };
  std::vector<std::string> told;
  for (const RankObservation& rank : ranks) {
    std::vector<double> others;
    for (const RankObservation& other : ranks) {
      if (&other != &rank && other.status->comparable == rank.status->comparable) {
        others.push_back(seconds_a_step(other));
      }
    }
    if (others.empty()) continue;
    const double usual = median(others);
    const double mine = seconds_a_step(rank);
    const bool was_slow = slow_.contains(rank.spec->rank);
    if (!was_slow && mine > limits_.factor * usual) {
      slow_.insert(rank.spec->rank);
      told.push_back(fmt::format(
          "{}, is slow: it computes for {:.3g} s a step, {:.1f} × the median of the {} that {} the "
          "same work, over the last {} steps; all ranks wait for it",
          name_of(*rank.spec, rank.pid), mine, mine / usual,
          others.size() == 1 ? "one other rank" : fmt::format("{} other ranks", others.size()),
          others.size() == 1 ? "does" : "do", steps_of(rank)));
    } else if (was_slow && mine < limits_.factor_to_clear * usual) {
      slow_.erase(rank.spec->rank);
      told.push_back(
          fmt::format("{}, is no longer slow: it computes for {:.3g} s a step, {:.1f} × the median",
                      name_of(*rank.spec, rank.pid), mine, mine / usual));
    }
  }
  mark_all(now, ranks);
  return told;
}

}  // namespace dstrain::launcher
