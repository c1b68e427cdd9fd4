// HostLayout: which members of a group are on which host. Every member computes the same one.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/comm/host_identity.h"

namespace dstrain {

class HostLayout {
 public:
  /// `identities` are the members', by rank. One that is unknown is of a host of its own.
  explicit HostLayout(std::span<const HostIdentity> identities);

  /// Hosts in the order of their first members.
  [[nodiscard]] int hosts() const { return static_cast<int>(members_.size()); }
  /// The members of a host, in the order of ranks.
  [[nodiscard]] const std::vector<int>& members(int host) const {
    return members_[static_cast<std::size_t>(host)];
  }
  [[nodiscard]] int host_of(int member) const { return host_[static_cast<std::size_t>(member)]; }
  /// The place of a member among those of its host.
  [[nodiscard]] int place_of(int member) const { return place_[static_cast<std::size_t>(member)]; }
  /// Members of the host that has the fewest.
  [[nodiscard]] int fewest() const { return fewest_; }
  /// Whether the ranks of a host's members follow each other, on every host.
  [[nodiscard]] bool in_rank_order() const { return in_rank_order_; }

 private:
  std::vector<std::vector<int>> members_;
  std::vector<int> host_;
  std::vector<int> place_;
  int fewest_ = 0;
  bool in_rank_order_ = true;
};

}  // namespace dstrain
