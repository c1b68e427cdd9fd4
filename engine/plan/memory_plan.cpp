#include "engine/plan/memory_plan.h"

#include <algorithm>
#include <array>

#include "kernels/core/check.h"

namespace dstrain {
namespace {

std::int64_t align_up(std::int64_t bytes) {
  return (bytes + MemoryPlan::kAlignmentBytes - 1) / MemoryPlan::kAlignmentBytes *
         MemoryPlan::kAlignmentBytes;
}

RegionKind region_of(Lifetime lifetime) {
  switch (lifetime) {
    case Lifetime::kSaved:
      return RegionKind::kSaved;
    case Lifetime::kScratch:
      return RegionKind::kScratch;
    case Lifetime::kConstant:
      return RegionKind::kConstants;
  }
  return RegionKind::kScratch;
}

}  // namespace

std::string name_of(RegionKind kind) {
  switch (kind) {
    case RegionKind::kParameters:
      return "parameters";
    case RegionKind::kMaster:
      return "master parameters";
    case RegionKind::kGradients:
      return "gradients";
    case RegionKind::kExpAvg:
      return "optimizer exp_avg";
    case RegionKind::kExpAvgSq:
      return "optimizer exp_avg_sq";
    case RegionKind::kSaved:
      return "saved activations";
    case RegionKind::kScratch:
      return "scratch";
    case RegionKind::kConstants:
      return "constants";
  }
  return "?";
}

MemoryPlan::MemoryPlan(const Blueprint& blueprint,
                       const ShardMap& shards,
                       const MemoryOptions& options)
    : options_(options) {
  unit_offsets_.push_back(0);
  for (int unit = 0; unit < shards.num_units(); ++unit) {
    unit_offsets_.push_back(unit_offsets_.back() + shards.padded_numel(unit));
  }
  const std::int64_t elements = unit_offsets_.back();
  const auto add_units = [&](RegionKind kind, DType dtype) {
    regions_.push_back(
        {kind, elements * size_of(dtype),
         fmt::format("{} parameters and {} of padding × {} bytes", blueprint.num_parameters(),
                     elements - blueprint.num_parameters(), size_of(dtype))});
  };
  add_units(RegionKind::kParameters, options.compute_dtype);
  if (options.training) {
    if (options.compute_dtype != DType::kF32) {
      add_units(RegionKind::kMaster, DType::kF32);
    }
    add_units(RegionKind::kGradients, DType::kF32);
    add_units(RegionKind::kExpAvg, DType::kF32);
    add_units(RegionKind::kExpAvgSq, DType::kF32);
  }

  std::array<std::int64_t, 3> ends{};  // saved, scratch, constants
  for (const BufferDecl& buffer : blueprint.buffers()) {
    std::int64_t& end = ends[static_cast<std::size_t>(buffer.lifetime)];
    placements_.push_back({region_of(buffer.lifetime), end});
    end += align_up(buffer.bytes());
  }
  saved_stride_bytes_ = ends[static_cast<std::size_t>(Lifetime::kSaved)];
  regions_.push_back({RegionKind::kSaved, saved_stride_bytes_ * options.micro_batches_in_flight,
                      fmt::format("{} bytes × {} micro-batches in flight", saved_stride_bytes_,
                                  options.micro_batches_in_flight)});
  regions_.push_back({RegionKind::kScratch, ends[static_cast<std::size_t>(Lifetime::kScratch)],
                      "gradients of activations and a chunk of logits, shared by all layers"});
  regions_.push_back({RegionKind::kConstants, ends[static_cast<std::size_t>(Lifetime::kConstant)],
                      "tables filled at start"});
}

bool MemoryPlan::has(RegionKind kind) const {
  return std::any_of(regions_.begin(), regions_.end(),
                     [&](const Region& region) { return region.kind == kind; });
}

const Region& MemoryPlan::region(RegionKind kind) const {
  const auto found = std::find_if(regions_.begin(), regions_.end(),
                                  [&](const Region& region) { return region.kind == kind; });
  check(found != regions_.end(), "the plan has no region \"{}\"", name_of(kind));
  return *found;
}

std::int64_t MemoryPlan::bytes() const {
  std::int64_t total = 0;
  for (const Region& region : regions_) {
    total += region.bytes;
  }
  return total;
}

std::int64_t MemoryPlan::unit_offset(int unit) const {
  return unit_offsets_.at(static_cast<std::size_t>(unit));
}

std::int64_t MemoryPlan::unit_numel(int unit) const {
  return unit_offsets_.at(static_cast<std::size_t>(unit) + 1) - unit_offset(unit);
}

const BufferPlacement& MemoryPlan::placement(BufferRef buffer) const {
  return placements_.at(static_cast<std::size_t>(buffer.index));
}

}  // namespace dstrain
