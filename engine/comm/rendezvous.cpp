#include "engine/comm/rendezvous.h"

#include <algorithm>
#include <functional>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace dstrain {

int rank_in_group(const Rendezvous& rendezvous,
                  const std::string& name,
                  std::span<const int> members) {
  const auto mine = std::find(members.begin(), members.end(), rendezvous.world_rank());
  const bool ascending =
      std::adjacent_find(members.begin(), members.end(), std::greater_equal<>()) == members.end();
  check(mine != members.end() && ascending && members.front() >= 0 &&
            members.back() < rendezvous.world_size(),
        "group \"{}\" of world ranks [{}], asked for by rank {} of {}: members must be distinct, "
        "ascending and include the one that asks",
        name, fmt::join(members, ", "), rendezvous.world_rank(), rendezvous.world_size());
  return static_cast<int>(mine - members.begin());
}

}  // namespace dstrain
