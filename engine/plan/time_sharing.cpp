#include "engine/plan/time_sharing.h"

#include <algorithm>
#include <numeric>

namespace dstrain {
namespace {

bool covers(const Tenancy& tenancy, std::int64_t moment) {
  return tenancy.begin <= tenancy.end ? tenancy.begin <= moment && moment <= tenancy.end
                                      : moment >= tenancy.begin || moment <= tenancy.end;
}

/// Chooses among the places at or next to those of other tenants that are free for all of a
/// tenant's time: the one vacated last before the tenant begins, and of equals the lowest. A place
/// beyond all others, which enlarges the region, is the last resort.
std::int64_t choose_offset(std::span<const Tenancy> tenants,
                           std::size_t tenant,
                           const std::vector<std::size_t>& placed,
                           const SharedLayout& layout) {
  const Tenancy& here = tenants[tenant];
  std::vector<std::int64_t> places{0};
  for (const std::size_t other : placed) {
    places.push_back(layout.offsets[other]);
    places.push_back(layout.offsets[other] + tenants[other].size);
  }
  // Blocks are alike, so most of the places are the same few.
  std::sort(places.begin(), places.end());
  places.erase(std::unique(places.begin(), places.end()), places.end());
  constexpr std::int64_t kNever = -1;
  std::int64_t best = layout.size;
  std::int64_t best_left = kNever - 1;
  for (const std::int64_t place : places) {
    if (place + here.size > layout.size && best_left >= kNever) {
      break;
    }
    bool is_free = true;
    std::int64_t left = kNever;
    for (const std::size_t other : placed) {
      const bool same_memory = layout.offsets[other] < place + here.size &&
                               place < layout.offsets[other] + tenants[other].size;
      is_free = is_free && !(same_memory && overlap(here, tenants[other]));
      left = same_memory && tenants[other].end < here.begin ? std::max(left, tenants[other].end)
                                                            : left;
    }
    if (is_free && left > best_left) {
      best = place;
      best_left = left;
    }
  }
  return best;
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
  std::vector<std::size_t> placed;
  for (const std::size_t tenant : order) {
    layout.offsets[tenant] = choose_offset(tenants, tenant, placed, layout);
    layout.size = std::max(layout.size, layout.offsets[tenant] + tenants[tenant].size);
    placed.push_back(tenant);
  }
  return layout;
}

}  // namespace dstrain
