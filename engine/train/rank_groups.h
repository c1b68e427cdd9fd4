// RankGroups: the communicators of one rank, one for each set of ranks that its plan has
// (engine/plan/group_plan.h). Only the members of a set meet.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "engine/comm/rendezvous.h"
#include "engine/plan/group_plan.h"

namespace dstrain {

class RankGroups {
 public:
  /// Collective over the world. `host` and `device` may be one, where the host is the device.
  RankGroups(Rendezvous& host, Rendezvous& device, const std::vector<GroupPlan>& plans);

  /// nullptr where the rank is in no such group.
  [[nodiscard]] Communicator* find(GroupId id) const;
  /// nullptr also where this rank is alone in it.
  [[nodiscard]] Communicator* find_others(GroupId id) const;
  /// The group, which the plan must have.
  [[nodiscard]] Communicator& operator[](GroupId id) const;

  /// Aborts all groups. May be called from any thread.
  void abort() noexcept;

 private:
  std::vector<std::pair<GroupId, std::unique_ptr<Communicator>>> groups_;
};

}  // namespace dstrain
