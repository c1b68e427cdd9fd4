// Time sharing: several tenants in one region, each for a part of a cycle. Those whose times
// overlap get disjoint memory, the others may stand in the same place. Pure arithmetic.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace dstrain {

/// `size` elements from moment `begin` to moment `end` of a cycle, both included; begin > end means
/// that the time continues past the end of the cycle from its start.
struct Tenancy {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size = 0;
};
bool overlap(const Tenancy& a, const Tenancy& b);

struct SharedLayout {
  std::vector<std::int64_t> offsets;  ///< one a tenant
  std::int64_t size = 0;              ///< of the region
};

/// Places the largest tenant first, each where memory is free for all of its time, after the
/// greedy-by-size rule of Pisarchyk & Lee 2020, "Efficient memory management for deep neural net
/// inference". Of several places it takes the one that was left last: a unit that is gone for a
/// moment returns to where it was, and tenants that lie beside it meanwhile need not avoid two
/// places.
SharedLayout share_memory(std::span<const Tenancy> tenants);

}  // namespace dstrain
