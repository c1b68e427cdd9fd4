#include "engine/comm/host_layout.h"

#include <algorithm>

namespace dstrain {

HostLayout::HostLayout(std::span<const HostIdentity> identities) {
  for (std::size_t member = 0; member < identities.size(); ++member) {
    std::size_t host = members_.size();
    for (std::size_t other = 0; other < member; ++other) {
      if (identities[member].shares_with(identities[other])) {
        host = static_cast<std::size_t>(host_[other]);
        break;
      }
    }
    if (host == members_.size()) members_.emplace_back();
    const int rank = static_cast<int>(member);
    host_.push_back(static_cast<int>(host));
    place_.push_back(static_cast<int>(members_[host].size()));
    in_rank_order_ =
        in_rank_order_ && (members_[host].empty() || members_[host].back() == rank - 1);
    members_[host].push_back(rank);
  }
  const auto smallest =
      std::min_element(members_.begin(), members_.end(),
                       [](const auto& a, const auto& b) { return a.size() < b.size(); });
  fewest_ = smallest == members_.end() ? 0 : static_cast<int>(smallest->size());
}

}  // namespace dstrain
