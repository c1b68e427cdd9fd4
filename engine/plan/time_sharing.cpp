#include "engine/plan/time_sharing.h"

#include <algorithm>
#include <numeric>

namespace dstrain {
namespace {

bool covers(const Tenancy& tenancy, std::int64_t moment) {
  return tenancy.begin <= tenancy.end ? tenancy.begin <= moment && moment <= tenancy.end
                                      : moment >= tenancy.begin || moment <= tenancy.end;
}

/// When the memory [offset, offset + size) was last left before `moment`; -1: never.
std::int64_t last_left(std::span<const Tenancy> tenants,
                       const std::vector<std::size_t>& placed,
                       const SharedLayout& layout,
                       std::int64_t offset,
                       std::int64_t size,
                       std::int64_t moment) {
  std::int64_t last = -1;
  for (const std::size_t other : placed) {
    const bool was_there = layout.offsets[other] < offset + size &&
                           offset < layout.offsets[other] + tenants[other].size;
    if (was_there && tenants[other].end < moment) {
      last = std::max(last, tenants[other].end);
    }
  }
  return last;
}

/// Of the gaps between those whose times overlap the tenant's: the one left last, or else what lies
/// beyond them all.
std::int64_t choose_offset(std::span<const Tenancy> tenants,
                           std::size_t tenant,
                           const std::vector<std::size_t>& placed,
                           const SharedLayout& layout) {
  const Tenancy& here = tenants[tenant];
  std::int64_t gap = 0;
  std::int64_t best = -1;
  std::int64_t best_left = -2;
  const auto consider = [&](std::int64_t gap_end) {
    const std::int64_t left = last_left(tenants, placed, layout, gap, here.size, here.begin);
    if (gap + here.size <= gap_end && left > best_left) {
      best = gap;
      best_left = left;
    }
  };
  for (const std::size_t other : placed) {
    if (overlap(here, tenants[other])) {
      consider(layout.offsets[other]);
      gap = std::max(gap, layout.offsets[other] + tenants[other].size);
    }
  }
  consider(layout.size);
  return best >= 0 ? best : gap;
}

}  // namespace

bool overlap(const Tenancy& a, const Tenancy& b) {
  return covers(a, b.begin) || covers(b, a.begin);
}

SharedLayout share_memory(std::span<const Tenancy> tenants) {
  SharedLayout layout;
  layout.offsets.resize(tenants.size(), 0);
  std::vector<std::size_t> order(tenants.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return tenants[a].size > tenants[b].size; });
  std::vector<std::size_t> placed;  // by offset
  for (const std::size_t tenant : order) {
    layout.offsets[tenant] = choose_offset(tenants, tenant, placed, layout);
    layout.size = std::max(layout.size, layout.offsets[tenant] + tenants[tenant].size);
    const auto above = std::upper_bound(
        placed.begin(), placed.end(), layout.offsets[tenant],
        [&](std::int64_t offset, std::size_t other) { return offset < layout.offsets[other]; });
    placed.insert(above, tenant);
  }
  return layout;
}

}  // namespace dstrain
