#include "engine/train/rank_groups.h"

#include "kernels/core/check.h"

namespace dstrain {

RankGroups::RankGroups(Rendezvous& host, Rendezvous& device, const std::vector<GroupPlan>& plans) {
  for (const GroupPlan& plan : plans) {
    Rendezvous& rendezvous = plan.space == Space::kHost ? host : device;
    groups_.emplace_back(plan.id, rendezvous.make_group(plan.name, plan.members));
  }
}

Communicator* RankGroups::find(GroupId id) const {
  for (const auto& [of, group] : groups_) {
    if (of == id) {
      return group.get();
    }
  }
  return nullptr;
}

Communicator* RankGroups::find_others(GroupId id) const {
  Communicator* const group = find(id);
  return group != nullptr && group->size() > 1 ? group : nullptr;
}

Communicator& RankGroups::operator[](GroupId id) const {
  Communicator* const group = find(id);
  check(group != nullptr, "this rank's plan has no group {}", static_cast<int>(id));
  return *group;
}

void RankGroups::abort() noexcept {
  for (const auto& [id, group] : groups_) {
    group->abort();
  }
}

}  // namespace dstrain
