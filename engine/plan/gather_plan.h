// GatherPlan: when ZeRO stage 3 makes a unit's parameters whole, where they lie meanwhile, and when
// it lets them go. A pure function of the order of visits: nothing is discovered while training.
//
// With the default of one unit ahead, a model of two blocks and an untied head:
//   visit      F emb   F b0   F b1   F head   B head   B b1   B b0   B emb
//   starts     emb b0   b1    head              b1      b0
//   holds      emb b0  b0 b1  b1 hd    hd     hd b1   b1 b0    b0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/plan/unit_walk.h"

namespace dstrain {

struct GatherOptions {
  /// The number of elements gathered ahead of their use, at least one unit; 0: none. Absent: those
  /// of the next visit.
  std::optional<std::int64_t> prefetch;
  /// The most elements that may be gathered at once because of prefetching or reuse; what a visit
  /// itself reads is always gathered. Absent: no limit.
  std::optional<std::int64_t> max_live;
  /// A unit stays gathered to its next use if the visits in between read at most so many elements.
  std::int64_t max_reuse_distance = 0;
  /// The walk starts again where it ends (micro-batches of one step), so that its first units can
  /// be gathered during the last visits of the walk before.
  bool repeats = false;
};

/// One unit gathered once and released once.
struct Gather {
  int unit = 0;
  std::int64_t start = 0;  ///< before this visit computes; -1: during the walk before
  std::int64_t first_use = 0;
  std::int64_t last_use = 0;
  std::int64_t offset = 0;  ///< of its first element in the region of gathered parameters
};

class GatherPlan {
 public:
  GatherPlan() = default;
  /// sizes[u]: elements of unit u once gathered, padding included; 0 for a unit that is always
  /// whole and needs no gathering.
  GatherPlan(UnitWalk walk, std::vector<std::int64_t> sizes, const GatherOptions& options);

  [[nodiscard]] const UnitWalk& walk() const { return walk_; }
  [[nodiscard]] const std::vector<Gather>& gathers() const { return gathers_; }
  /// Indices of the gathers to start before a visit computes, in the order of their first use;
  /// visit -1: those that the first visits of a walk need and that have not been started.
  [[nodiscard]] const std::vector<int>& starting(std::int64_t visit) const;
  /// The gathers that a visit reads, and those that it is the last to read.
  [[nodiscard]] const std::vector<int>& used(std::int64_t visit) const;
  [[nodiscard]] const std::vector<int>& released(std::int64_t visit) const;
  /// The number of elements of the region.
  [[nodiscard]] std::int64_t size() const { return size_; }

 private:
  void find_residencies(std::int64_t max_reuse_distance);
  void choose_starts(const GatherOptions& options);
  void place();

  UnitWalk walk_;
  std::vector<std::int64_t> sizes_;
  std::vector<Gather> gathers_;
  std::vector<std::vector<int>> starting_;  // [visit + 1]
  std::vector<std::vector<int>> used_;
  std::vector<std::vector<int>> released_;
  std::int64_t size_ = 0;
};

}  // namespace dstrain
