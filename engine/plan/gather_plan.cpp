#include "engine/plan/gather_plan.h"

#include <algorithm>
#include <numeric>

#include "engine/plan/time_sharing.h"

namespace dstrain {
namespace {

std::int64_t size_of_reads(const UnitVisit& visit, const std::vector<std::int64_t>& sizes) {
  return std::accumulate(
      visit.reads.begin(), visit.reads.end(), std::int64_t{0},
      [&](std::int64_t sum, int unit) { return sum + sizes.at(static_cast<std::size_t>(unit)); });
}

}  // namespace

GatherPlan::GatherPlan(UnitWalk walk, std::vector<std::int64_t> sizes, const GatherOptions& options)
    : walk_(std::move(walk)),
      sizes_(std::move(sizes)),
      starting_(walk_.size() + 1),
      used_(walk_.size()),
      released_(walk_.size()) {
  find_residencies(options.max_reuse_distance);
  choose_starts(options);
  place();
  for (std::size_t index = 0; index < gathers_.size(); ++index) {
    const Gather& gather = gathers_[index];
    starting_[static_cast<std::size_t>(gather.start + 1)].push_back(static_cast<int>(index));
    released_[static_cast<std::size_t>(gather.last_use)].push_back(static_cast<int>(index));
    for (std::int64_t visit = gather.first_use; visit <= gather.last_use; ++visit) {
      const std::vector<int>& reads = walk_[static_cast<std::size_t>(visit)].reads;
      if (std::find(reads.begin(), reads.end(), gather.unit) != reads.end()) {
        used_[static_cast<std::size_t>(visit)].push_back(static_cast<int>(index));
      }
    }
  }
}

/// Uses of one unit that follow each other closely enough share one gather. Gathers are in order of
/// first use.
void GatherPlan::find_residencies(std::int64_t max_reuse_distance) {
  std::vector<int> newest(sizes_.size(), -1);              // gather of a unit
  std::vector<std::int64_t> read_up_to(walk_.size() + 1);  // elements read before a visit
  for (std::size_t visit = 0; visit < walk_.size(); ++visit) {
    read_up_to[visit + 1] = read_up_to[visit] + size_of_reads(walk_[visit], sizes_);
    for (const int unit : walk_[visit].reads) {
      if (sizes_[static_cast<std::size_t>(unit)] == 0) {
        continue;
      }
      const auto here = static_cast<std::int64_t>(visit);
      int& gather = newest[static_cast<std::size_t>(unit)];
      const bool stays =
          gather >= 0 &&
          read_up_to[visit] - read_up_to[static_cast<std::size_t>(
                                  gathers_[static_cast<std::size_t>(gather)].last_use + 1)] <=
              max_reuse_distance;
      if (stays) {
        gathers_[static_cast<std::size_t>(gather)].last_use = here;
      } else {
        gather = static_cast<int>(gathers_.size());
        gathers_.push_back({.unit = unit, .start = here, .first_use = here, .last_use = here});
      }
    }
  }
}

/// Each gather starts as many visits before its first use as the options allow, never before one
/// that is used earlier.
void GatherPlan::choose_starts(const GatherOptions& options) {
  const auto visits = static_cast<std::int64_t>(walk_.size());
  std::vector<std::int64_t> live(walk_.size() + 1, 0);   // [visit + 1]: elements held or arriving
  std::vector<std::int64_t> ahead(walk_.size() + 1, 0);  // of those, not used yet
  for (const Gather& gather : gathers_) {
    for (std::int64_t visit = gather.first_use; visit <= gather.last_use; ++visit) {
      live[static_cast<std::size_t>(visit + 1)] += sizes_[static_cast<std::size_t>(gather.unit)];
    }
  }
  std::int64_t earliest = -1;
  for (Gather& gather : gathers_) {
    const std::int64_t size = sizes_[static_cast<std::size_t>(gather.unit)];
    while (gather.start > earliest) {
      const auto before = static_cast<std::size_t>(gather.start);  // visit start - 1
      const bool next_visit = gather.start == gather.first_use;
      const bool wanted =
          options.prefetch ? *options.prefetch > 0 && (ahead[before] + size <= *options.prefetch ||
                                                       (next_visit && ahead[before] == 0))
                           : next_visit;
      // Visit -1 is the last one of the walk before.
      const std::int64_t held = live[before] + (before == 0 ? live.back() : 0);
      const bool fits = !options.max_live || held + size <= *options.max_live;
      if (!wanted || !fits) {
        break;
      }
      gather.start -= 1;
      live[before] += size;
      ahead[before] += size;
    }
    earliest = gather.start;
  }
  if (!options.repeats) {
    for (Gather& gather : gathers_) {
      gather.start = std::max<std::int64_t>(gather.start, visits > 0 ? 0 : -1);
    }
  }
}

void GatherPlan::place() {
  const auto visits = static_cast<std::int64_t>(walk_.size());
  std::vector<Tenancy> tenants;
  for (const Gather& gather : gathers_) {
    tenants.push_back({.begin = gather.start < 0 ? visits - 1 : gather.start,
                       .end = gather.last_use,
                       .size = sizes_[static_cast<std::size_t>(gather.unit)]});
  }
  const SharedLayout layout = share_memory(tenants);
  for (std::size_t index = 0; index < gathers_.size(); ++index) {
    gathers_[index].offset = layout.offsets[index];
  }
  size_ = layout.size;
}

const std::vector<int>& GatherPlan::starting(std::int64_t visit) const {
  return starting_.at(static_cast<std::size_t>(visit + 1));
}

const std::vector<int>& GatherPlan::used(std::int64_t visit) const {
  return used_.at(static_cast<std::size_t>(visit));
}

const std::vector<int>& GatherPlan::released(std::int64_t visit) const {
  return released_.at(static_cast<std::size_t>(visit));
}

}  // namespace dstrain
