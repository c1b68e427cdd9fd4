#include "launcher/supervision/hang_watch.h"

#include <algorithm>
#include <functional>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace dstrain::launcher {
namespace {

using Duration = std::chrono::nanoseconds;

// After a longer time without an observation, the launcher itself did not run.
constexpr std::chrono::seconds kGap{5};
constexpr std::size_t kMostNamed = 4;

bool waits(const RankStatus& status) {
  return status.waiting_for.has_value() || status.waits_in() != nullptr;
}

using Ranks = std::vector<const RankObservation*>;

/// The ranks that are not in a collective, or cannot leave theirs since somebody stopped them.
Ranks not_waiting(std::span<const RankObservation> ranks) {
  Ranks found;
  for (const RankObservation& rank : ranks) {
    if (!rank.status || rank.status->process.is_stopped() || !waits(*rank.status))
      found.push_back(&rank);
  }
  return found;
}

/// Where all wait: the ranks that have begun fewer collectives of a group than another member has.
Ranks behind(std::span<const RankObservation> ranks) {
  std::map<std::string, std::uint64_t> most;
  for (const RankObservation& rank : ranks) {
    for (const RankStatus::Group& group : rank.status->groups)
      most[group.name] = std::max(most[group.name], group.started);
  }
  Ranks found;
  for (const RankObservation& rank : ranks) {
    const auto& groups = rank.status->groups;
    if (std::any_of(groups.begin(), groups.end(), [&](const RankStatus::Group& group) {
          return group.started < most[group.name];
        })) {
      found.push_back(&rank);
    }
  }
  return found;
}

/// Where all wait: the ranks that wait in a group in which nobody else does.
Ranks alone(std::span<const RankObservation> ranks) {
  std::map<std::string, int> in_group;
  for (const RankObservation& rank : ranks) {
    if (const auto* const group = rank.status->waits_in()) ++in_group[group->name];
  }
  Ranks found;
  for (const RankObservation& rank : ranks) {
    const auto* const group = rank.status->waits_in();
    if (group == nullptr || in_group[group->name] == 1) found.push_back(&rank);
  }
  return found;
}

using CpuShare = std::function<double(const RankObservation&)>;

/// Where all wait: the ranks that nevertheless compute. A rank that waits for a message sleeps.
Ranks spinning(std::span<const RankObservation> ranks, const CpuShare& share_of) {
  constexpr double kBusy = 0.5;  // of one core
  Ranks found;
  for (const RankObservation& rank : ranks) {
    if (share_of(rank) > kBusy) found.push_back(&rank);
  }
  return found;
}

Ranks find_absent(std::span<const RankObservation> ranks, const CpuShare& share_of) {
  if (Ranks found = not_waiting(ranks); !found.empty()) return found;
  if (Ranks found = spinning(ranks, share_of); !found.empty() && found.size() < ranks.size()) {
    return found;
  }
  if (Ranks found = behind(ranks); !found.empty() && found.size() < ranks.size()) return found;
  if (Ranks found = alone(ranks); !found.empty()) return found;
  Ranks all;
  for (const RankObservation& rank : ranks)
    all.push_back(&rank);
  return all;
}

/// The time since any rank last finished a step or began something else.
Duration standing_still(std::span<const RankObservation> ranks, Duration watched) {
  Duration shortest = watched;
  for (const RankObservation& rank : ranks) {
    if (rank.status) shortest = std::min(shortest, rank.status->in_phase_for);
  }
  return shortest;
}

}  // namespace

std::optional<Hang> HangWatch::observe(TimePoint now, std::span<const RankObservation> ranks) {
  const bool nobody_speaks = std::none_of(ranks.begin(), ranks.end(), [](const RankObservation& r) {
    return r.status && r.status->has_spoken;
  });
  if (ranks.empty() || nobody_speaks) return std::nullopt;
  if (!first_ || now - last_ > kGap) first_ = now;
  last_ = now;
  const Duration still = standing_still(ranks, now - *first_);
  for (const RankObservation& rank : ranks) {
    CpuMark& mark = cpu_marks_[rank.spec->rank];
    // The mark moves until a moment after the last sign of life: CPU time used from then on is part
    // of the hang.
    constexpr std::chrono::milliseconds kMoment{1500};
    if (still < kMoment || mark.at == TimePoint{}) {
      mark = {now, rank.status ? rank.status->process.cpu_time : Duration{}};
    }
  }

  const Ranks absent = find_absent(ranks, [&](const RankObservation& rank) {
    const CpuMark& mark = cpu_marks_[rank.spec->rank];
    const Duration passed = now - mark.at;
    return passed < std::chrono::seconds{1}
               ? 0.0
               : static_cast<double>((rank.status->process.cpu_time - mark.cpu).count()) /
                     static_cast<double>(passed.count());
  });
  const bool all = absent.size() == ranks.size();
  Limit limit;
  for (const RankObservation* rank : absent) {
    Limit one = limit_of(rank->status, ranks);
    if (one.duration > limit.duration) limit = std::move(one);
  }
  if (still < limit.duration) return std::nullopt;

  Hang hang;
  std::vector<std::string> named;
  for (const RankObservation* rank : absent) {
    hang.absent.push_back(rank->spec);
    if (named.size() < kMostNamed) named.push_back(describe_absent(*rank, now, all));
  }
  std::string more;
  if (absent.size() > named.size()) {
    more = fmt::format("; and {} more", absent.size() - named.size());
  }
  std::string others;
  const std::size_t num_others = ranks.size() - absent.size();
  if (num_others > 0) {
    const auto waiting = std::find_if(ranks.begin(), ranks.end(), [&](const RankObservation& rank) {
      return std::find(absent.begin(), absent.end(), &rank) == absent.end();
    });
    others = fmt::format("; {} for {}: rank {} is {}",
                         num_others == 1 ? "the other rank waits"
                                         : fmt::format("the other {} ranks wait", num_others),
                         absent.size() == 1 ? "it" : "them", waiting->spec->rank,
                         waiting->status->describe());
  }
  hang.text = fmt::format("no rank has finished a step for {} (limit {}): {}{}{}", text_of(still),
                          limit.why, fmt::join(named, "; "), more, others);
  return hang;
}

HangWatch::Limit HangWatch::limit_of(const std::optional<RankStatus>& status,
                                     std::span<const RankObservation> ranks) const {
  const auto learned = [&](Duration least, Duration RankStatus::*longest_of, const char* what) {
    Duration longest{};
    for (const RankObservation& rank : ranks) {
      if (rank.status) longest = std::max(longest, (*rank.status).*longest_of);
    }
    if (longest * limits_.learned_factor <= least) {
      return Limit{least, fmt::format("{} for {}", text_of(least), what)};
    }
    return Limit{
        longest * limits_.learned_factor,
        fmt::format("{}, {} × the longest {} so far", text_of(longest * limits_.learned_factor),
                    limits_.learned_factor, what)};
  };
  const RankPhase phase = status ? status->phase : RankPhase::kStarting;
  switch (phase) {
    case RankPhase::kTraining:
      if (status->num_steps > 0) {
        if (limits_.step) return {*limits_.step, text_of(*limits_.step) + ", as asked for"};
        return learned(limits_.least_step, &RankStatus::longest_step, "step");
      }
      [[fallthrough]];
    case RankPhase::kStarting:
      return {limits_.start, text_of(limits_.start) + " until the first step"};
    case RankPhase::kEvaluating:
      return learned(limits_.least_evaluation, &RankStatus::longest_evaluation, "evaluation");
    case RankPhase::kSaving:
    case RankPhase::kEnding:
      break;
  }
  if (limits_.save) return {*limits_.save, text_of(*limits_.save) + " for a save, as asked for"};
  return learned(limits_.least_save, &RankStatus::longest_save, "save");
}

std::string HangWatch::describe_absent(const RankObservation& rank,
                                       TimePoint now,
                                       bool like_all) const {
  std::string text = name_of(*rank.spec, rank.pid);
  text += like_all ? ", stands still: " : ", did not arrive: ";
  if (!rank.status) return text + "it has said nothing since it was started";
  const ProcessState& process = rank.status->process;
  text += "it " + describe(process);
  if (const auto mark = cpu_marks_.find(rank.spec->rank);
      mark != cpu_marks_.end() && process.letter == 'R') {
    text +=
        fmt::format(" and has used {} of CPU in the last {}",
                    text_of(process.cpu_time - mark->second.cpu), text_of(now - mark->second.at));
  }
  if (!rank.status->has_spoken) return text + "; it has said nothing since it was started";
  return text +
         fmt::format("; it has been {}, after step {}", rank.status->describe(), rank.status->step);
}

}  // namespace dstrain::launcher
