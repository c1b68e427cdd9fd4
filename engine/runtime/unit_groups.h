// UnitGroups: the ranks with which a rank shares each unit. Units that are replicated over the same
// axes have the same groups; attention and experts may have different ones.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/plan/shard_map.h"

namespace dstrain {

/// The groups of units replicated over `axes`.
struct UnitGroup {
  AxisSet axes;
  /// The ranks among which a unit is cut: gradients are summed and slices gathered among them.
  Communicator* replicas;
  /// The ranks that hold other parts of what is updated, for numbers in host memory; nullptr: there
  /// are none.
  Communicator* norm;
  /// The ranks that have the same slice, over which its gradient is summed once more; nullptr:
  /// there are none.
  Communicator* copies = nullptr;
};

class UnitGroups {
 public:
  /// `groups` must be the same, in the same order, on every rank of the world, whether or not it
  /// has units of each. All outlive this.
  UnitGroups(const ShardMap& shards, std::vector<UnitGroup> groups) : groups_(std::move(groups)) {
    for (int unit = 0; unit < shards.num_units(); ++unit) {
      const UnitDecl& decl = shards.unit(unit);
      const auto found = std::find_if(groups_.begin(), groups_.end(), [&](const UnitGroup& group) {
        return group.axes == decl.replicated;
      });
      check(found != groups_.end(), "unit {} has no group", decl.name);
      check(found->replicas->size() == shards.num_slices(unit),
            "unit {} has {} slices for {} ranks", decl.name, shards.num_slices(unit),
            found->replicas->size());
      of_unit_.push_back(static_cast<std::size_t>(found - groups_.begin()));
    }
  }

  [[nodiscard]] const std::vector<UnitGroup>& groups() const { return groups_; }
  /// The index of a unit's group in groups().
  [[nodiscard]] std::size_t index_of(int unit) const {
    return of_unit_.at(static_cast<std::size_t>(unit));
  }
  [[nodiscard]] Communicator& replicas(int unit) const { return *groups_[index_of(unit)].replicas; }
  [[nodiscard]] Communicator* copies(int unit) const { return groups_[index_of(unit)].copies; }

 private:
  std::vector<UnitGroup> groups_;
  std::vector<std::size_t> of_unit_;
};

}  // namespace dstrain
