// The part of MemoryPlan that gives units and buffers their places in a region, once it is decided
// that there is one (memory_plan.cpp).
#include <algorithm>
#include <array>

#include "engine/comm/codec.h"
#include "engine/plan/memory_plan.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

RegionKind region_of(Lifetime lifetime) {
  switch (lifetime) {
    case Lifetime::kSaved:
      return RegionKind::kSaved;
    case Lifetime::kScratch:
      return RegionKind::kScratch;
    case Lifetime::kConstant:
      return RegionKind::kConstants;
    case Lifetime::kCache:
      return RegionKind::kCache;
    case Lifetime::kWhole:
      return RegionKind::kWhole;
  }
  return RegionKind::kScratch;
}

}  // namespace

void MemoryPlan::add_units(RegionKind kind,
                           DType dtype,
                           const std::vector<Range>& held,
                           std::string because,
                           Space space) {
  UnitRegion region{.kind = kind, .dtype = dtype, .places = {}, .neighbours = {}, .tenancies = {}};
  add_region_of_units(region, 0, static_cast<int>(held.size()), held, because, space);
  unit_regions_.push_back(std::move(region));
}

void MemoryPlan::add_states(RegionKind kind,
                            DType dtype,
                            const std::vector<Range>& held,
                            const std::string& because) {
  const auto units = static_cast<int>(held.size());
  UnitRegion region{.kind = kind, .dtype = dtype, .places = {}, .neighbours = {}, .tenancies = {}};
  if (units_apart_ == 0 || units_apart_ == units) {
    add_region_of_units(region, 0, units, held, because, placement().states.space);
  } else {
    add_region_of_units(region, 0, units_apart_, held,
                        fmt::format("units 1 to {} of {}", units_apart_, because),
                        placement().states.space);
    add_region_of_units(region, units_apart_, units, held,
                        fmt::format("the other units of {}", because), Space::kDevice);
  }
  unit_regions_.push_back(std::move(region));
}

/// Adds the memory of units [begin, end), one after the other.
void MemoryPlan::add_region_of_units(UnitRegion& units,
                                     int begin,
                                     int end,
                                     const std::vector<Range>& held,
                                     const std::string& because,
                                     Space space) {
  std::int64_t elements = 0;
  for (int unit = begin; unit < end; ++unit) {
    const Range& range = held[static_cast<std::size_t>(unit)];
    units.places.push_back({elements, range, space});
    elements += range.size();
  }
  std::int64_t bytes = elements * size_of(units.dtype);
  if (space == Space::kDisk) {
    bytes = (bytes + kDiskBlockBytes - 1) / kDiskBlockBytes * kDiskBlockBytes;
  }
  regions_.push_back({units.kind, bytes,
                      fmt::format("{} × {} bytes: {}", elements, size_of(units.dtype), because),
                      space});
}

void MemoryPlan::add_buckets(RegionKind kind,
                             const Codec& codec,
                             const ShardMap& shards,
                             bool from_first_write,
                             bool to_next_visit,
                             const char* because) {
  constexpr std::int64_t kNever = -1;
  std::vector<Tenancy> tenants;
  for (int unit = 0; unit < shards.num_units(); ++unit) {
    Tenancy tenancy{
        .begin = kNever, .end = kNever, .size = codec.wire_elements(shards.padded_numel(unit))};
    for (std::size_t visit = 0; visit < options_.walk.size(); ++visit) {
      const std::vector<int>& writes = options_.walk[visit].writes;
      if (std::find(writes.begin(), writes.end(), unit) == writes.end()) {
        continue;
      }
      tenancy.end = static_cast<std::int64_t>(visit);
      tenancy.begin = tenancy.begin == kNever ? tenancy.end : tenancy.begin;
    }
    if (!shards.unit(unit).trained) {
      tenants.push_back({.begin = 0, .end = 0, .size = 0});
      continue;
    }
    check(tenancy.begin != kNever, "no visit writes the gradient of unit {}", unit);
    tenancy.begin = from_first_write ? tenancy.begin : tenancy.end;
    tenancy.end += to_next_visit ? 1 : 0;
    tenants.push_back(tenancy);
  }
  const SharedLayout layout = share_memory(tenants);
  const DType dtype = codec.wire_dtype();
  UnitRegion region{.kind = kind, .dtype = dtype, .places = {}, .neighbours = {}, .tenancies = {}};
  for (std::size_t unit = 0; unit < tenants.size(); ++unit) {
    region.places.push_back({layout.offsets[unit], {0, tenants[unit].size}});
    std::vector<int> neighbours;
    for (std::size_t other = 0; other < tenants.size(); ++other) {
      if (layout.offsets[unit] < layout.offsets[other] + tenants[other].size &&
          layout.offsets[other] < layout.offsets[unit] + tenants[unit].size) {
        neighbours.push_back(static_cast<int>(other));
      }
    }
    region.neighbours.push_back(std::move(neighbours));
  }
  regions_.push_back({kind, layout.size * size_of(dtype),
                      fmt::format("{} × {} bytes: {}", layout.size, size_of(dtype), because)});
  region.tenancies = std::move(tenants);
  unit_regions_.push_back(std::move(region));
}

void MemoryPlan::plan_buffers(const Blueprint& blueprint) {
  std::array<std::int64_t, 5> ends{};  // by lifetime; saved ones end chunk by chunk
  saved_strides_.assign(options_.slots.size(), 0);
  host_saved_strides_.assign(options_.slots.size(), 0);
  for (const BufferDecl& buffer : blueprint.buffers()) {
    const bool saved = buffer.lifetime == Lifetime::kSaved;
    const bool on_host = buffer.space == Space::kHost;
    check(saved || !on_host, "buffer {} in the host's memory is not saved", buffer.name);
    std::vector<std::int64_t>& strides = on_host ? host_saved_strides_ : saved_strides_;
    std::int64_t& end = saved ? strides.at(static_cast<std::size_t>(buffer.chunk))
                              : ends[static_cast<std::size_t>(buffer.lifetime)];
    placements_.push_back({region_of(buffer.lifetime), end, buffer.space});
    end += bytes_of(buffer);
  }
  place_saved(blueprint, Space::kDevice);
  place_saved(blueprint, Space::kHost);
  regions_.push_back({RegionKind::kScratch, ends[static_cast<std::size_t>(Lifetime::kScratch)],
                      options_.training
                          ? "gradients of activations, activations computed again and a chunk of "
                            "logits, shared by all layers"
                          : "activations of one forward, shared by all layers, and logits"});
  regions_.push_back({RegionKind::kConstants, ends[static_cast<std::size_t>(Lifetime::kConstant)],
                      "tables filled at start"});
  if (const std::int64_t cache = ends[static_cast<std::size_t>(Lifetime::kCache)]; cache > 0) {
    regions_.push_back({RegionKind::kCache, cache, "keys and values of every position and block"});
  }
  if (const std::int64_t whole = ends[static_cast<std::size_t>(Lifetime::kWhole)]; whole > 0) {
    regions_.push_back({RegionKind::kWhole, whole,
                        "gathered to sample texts with, or those that the run began with"});
  }
}

void MemoryPlan::place_saved(const Blueprint& blueprint, Space space) {
  std::int64_t saved = 0;
  std::string because;
  std::vector<std::int64_t> begins;  // of the chunks
  for (std::size_t chunk = 0; chunk < options_.slots.size(); ++chunk) {
    const std::int64_t stride = saved_stride_bytes(static_cast<int>(chunk), space);
    begins.push_back(saved);
    saved += stride * options_.slots[chunk];
    because += fmt::format("{}{} bytes × {} micro-batches in flight", chunk == 0 ? "" : ", ",
                           stride, options_.slots[chunk]);
  }
  for (std::size_t i = 0; i < placements_.size(); ++i) {
    if (placements_[i].region == RegionKind::kSaved && placements_[i].space == space) {
      placements_[i].offset_bytes += begins[static_cast<std::size_t>(blueprint.buffers()[i].chunk)];
    }
  }
  if (space == Space::kDevice || saved > 0) {
    regions_.push_back({RegionKind::kSaved, saved, because, space});
  }
}

std::int64_t MemoryPlan::saved_stride_bytes(int chunk, Space space) const {
  const std::vector<std::int64_t>& strides =
      space == Space::kHost ? host_saved_strides_ : saved_strides_;
  return strides.at(static_cast<std::size_t>(chunk));
}

int MemoryPlan::slots_of(const BufferDecl& buffer) const {
  return buffer.lifetime == Lifetime::kSaved
             ? options_.slots.at(static_cast<std::size_t>(buffer.chunk))
             : 1;
}

std::int64_t MemoryPlan::bytes_of(const BufferDecl& buffer) {
  return (buffer.bytes() + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
}

}  // namespace dstrain
