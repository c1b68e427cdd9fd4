#include "engine/plan/memory_plan.h"

#include <algorithm>
#include <memory>

#include "engine/comm/codec.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

/// "all 124439808 parameters" or "1/4 of 124439808 parameters".
std::string share_text(std::int64_t parameters, const Place& place, const ShardMap& shards) {
  if (!place.is_cut() || !shards.has_replicas()) {
    return fmt::format("all {} parameters", parameters);
  }
  const int slices = shards.num_slices(0);
  for (int unit = 1; unit < shards.num_units(); ++unit) {
    if (shards.num_slices(unit) != slices) {
      return fmt::format("slices of {} parameters", parameters);
    }
  }
  return fmt::format("1/{} of {} parameters", slices, parameters);
}

}  // namespace

std::string name_of(RegionKind kind) {
  switch (kind) {
    case RegionKind::kParameters:
      return "parameters";
    case RegionKind::kSecondary:
      return "second copy of parameters";
    case RegionKind::kCodedTraffic:
      return "coded traffic";
    case RegionKind::kGathered:
      return "gathered parameters";
    case RegionKind::kMaster:
      return "master parameters";
    case RegionKind::kGradients:
      return "gradients";
    case RegionKind::kGradientBuckets:
      return "gradient buckets";
    case RegionKind::kWireBuckets:
      return "communication buckets";
    case RegionKind::kFirstMoment:
      return "optimizer first moment";
    case RegionKind::kSecondMoment:
      return "optimizer second moment";
    case RegionKind::kThirdMoment:
      return "optimizer third moment";
    case RegionKind::kUnsent:
      return "unsent remainders";
    case RegionKind::kServersUnsent:
      return "servers' unsent remainders";
    case RegionKind::kParameterReads:
      return "parameters on their way from the disk";
    case RegionKind::kStateWindows:
      return "optimizer windows";
    case RegionKind::kSaved:
      return "saved activations";
    case RegionKind::kScratch:
      return "scratch";
    case RegionKind::kConstants:
      return "constants";
    case RegionKind::kCache:
      return "key/value cache";
    case RegionKind::kWhole:
      return "copies of parameters";
  }
  return "?";
}

std::vector<PlacedPiece> pieces_with_moment(const ShardMap& shards,
                                            int unit,
                                            Range range,
                                            MomentExtent extent) {
  std::vector<PlacedPiece> pieces;
  if (extent != MomentExtent::kNone) {
    pieces = shards.pieces(unit, range);
  }
  if (extent == MomentExtent::kNotHiddenMatrices) {
    std::erase_if(pieces, [&](const PlacedPiece& placed) {
      return shards.unit(unit).params[static_cast<std::size_t>(placed.param)].hidden_matrix;
    });
  }
  return pieces;
}

MemoryPlan::MemoryPlan(const Blueprint& blueprint,
                       const ShardMap& shards,
                       const MemoryOptions& options)
    : options_(options) {
  const Placement& placement = options.placement;
  check(placement.gradients.space == Space::kDevice, "gradients lie where the model computes");
  const Space parameters = placement.parameters.space;
  check(!parameters_are_apart() ||
            (placement.parameters.is_cut() && states_are_apart() &&
             (parameters == Space::kHost || placement.states.space == Space::kDisk)),
        "parameters lie apart where they are gathered, and no farther away than the states");
  for (int unit = 0; unit < shards.num_units(); ++unit) {
    owned_.push_back(placement.states.cuts(shards.unit(unit).replicated)
                         ? shards.own_slice(unit)
                         : Range{0, shards.padded_numel(unit)});
    updated_.push_back(shards.unit(unit).trained ? owned_.back() : Range{});
  }
  find_units_apart();
  plan_parameters(blueprint, shards);
  plan_coded_traffic(shards);
  if (options.training) {
    plan_gradients(blueprint, shards);
    plan_moment(RegionKind::kFirstMoment, options.first_moment, blueprint, shards);
    plan_moment(RegionKind::kSecondMoment, options.second_moment, blueprint, shards);
    if (options.third_moment) {
      plan_moment(RegionKind::kThirdMoment, MomentExtent::kAll, blueprint, shards);
    }
    if (options.signs) plan_signs(*options.signs);
    if (options.compression) plan_compression(shards);
    plan_windows();
  }
  plan_buffers(blueprint);
}

void MemoryPlan::plan_parameters(const Blueprint& blueprint, const ShardMap& shards) {
  const std::int64_t parameters = blueprint.num_parameters();
  const Place& place = placement().parameters;
  std::vector<Range> held;
  for (int unit = 0; unit < shards.num_units(); ++unit) {
    const auto index = static_cast<std::size_t>(unit);
    const bool whole = !place.cuts(shards.unit(unit).replicated) ||
                       (!options_.always_whole.empty() && options_.always_whole.at(index));
    held.push_back(whole ? Range{0, shards.padded_numel(unit)} : owned_[index]);
  }
  const std::int64_t size = size_of(options_.compute_dtype);
  add_units(RegionKind::kParameters, options_.compute_dtype, held,
            share_text(parameters, place, shards), place.space);
  if (place.is_cut() && options_.gathered_elements > 0) {
    regions_.push_back({RegionKind::kGathered, options_.gathered_elements * size,
                        fmt::format("{} elements of units in use or on their way × {} bytes",
                                    options_.gathered_elements, size)});
  }
  if (place.space == Space::kDisk) {
    regions_.push_back({RegionKind::kParameterReads,
                        options_.parameter_reads * parameter_read_bytes(),
                        fmt::format("{} slices of the largest unit, in blocks of the disk",
                                    options_.parameter_reads),
                        options_.device_is_host ? Space::kDevice : Space::kHost});
  }
  if (placement().secondary.is_cut()) {
    std::vector<Range> second;
    for (int unit = 0; unit < shards.num_units(); ++unit) {
      const bool whole = held[static_cast<std::size_t>(unit)].size() == shards.padded_numel(unit);
      const std::int64_t slice = whole ? 0 : shards.padded_numel(unit) / options_.secondary_ranks;
      second.push_back({options_.secondary_index * slice, (options_.secondary_index + 1) * slice});
    }
    add_units(RegionKind::kSecondary, options_.compute_dtype, second,
              fmt::format("1/{} of {} parameters", options_.secondary_ranks, parameters),
              placement().secondary.space);
  }
  const DType master = options_.f32_master ? DType::kF32 : options_.compute_dtype;
  const bool is_beyond_reach =
      states_are_apart() && !parameters_are_apart() && !options_.device_is_host;
  const bool is_apart = is_beyond_reach || options_.updates_alone;
  if (options_.training && (master != options_.compute_dtype || is_apart)) {
    std::vector<Range> mastered = updated_;
    for (int unit = 0; unit < shards.num_units(); ++unit) {
      if (master == options_.compute_dtype && !states_are_apart(unit) && !options_.updates_alone) {
        Range& range = mastered[static_cast<std::size_t>(unit)];
        range.end = range.begin;  // the parameters themselves are the master
      }
    }
    add_states(RegionKind::kMaster, master, mastered,
               share_text(blueprint.num_trained(), placement().states, shards));
  }
}

std::int64_t MemoryPlan::coded_parameters(const ShardMap& shards, int unit) const {
  const std::vector<bool>& whole = options_.always_whole;
  const bool is_gathered = placement().parameters.is_cut() && shards.num_slices(unit) > 1 &&
                           (whole.empty() || !whole.at(static_cast<std::size_t>(unit)));
  return options_.parameter_code && is_gathered
             ? shards.num_slices(unit) * options_.parameter_code->bytes(shards.slice_numel(unit))
             : 0;
}

std::int64_t MemoryPlan::coded_gradients(const ShardMap& shards, int unit) const {
  return options_.gradient_code && shards.num_slices(unit) > 1
             ? shards.num_slices(unit) * options_.gradient_code->bytes(shards.slice_numel(unit))
             : 0;
}

/// Everything that travels in a code does so one after the other, in the same memory. What comes in
/// by an all-to-all lies beside what goes out.
void MemoryPlan::plan_coded_traffic(const ShardMap& shards) {
  static_assert(ShardMap::kAlignment % BlockCode::kMultiple == 0);
  std::int64_t most = 0;
  for (int unit = 0; unit < shards.num_units(); ++unit) {
    most = std::max({most, coded_parameters(shards, unit), 2 * coded_gradients(shards, unit)});
  }
  std::string because = "the largest unit as it travels, codes and scales";
  if (options_.signs && options_.signs->ranks() > 1) {
    most = 2 * options_.signs->bytes();
    because = fmt::format("signs and scales for {0} ranks and from {0} ranks, {1} bytes each",
                          options_.signs->ranks(), options_.signs->message_bytes());
  }
  if (most > 0) {
    regions_.push_back({RegionKind::kCodedTraffic, most, std::move(because)});
  }
}

void MemoryPlan::plan_gradients(const Blueprint& blueprint, const ShardMap& shards) {
  const Place& place = placement().gradients;
  const bool cut = place.is_cut();
  std::vector<Range> held = updated_;
  for (int unit = 0; unit < shards.num_units(); ++unit) {
    if (shards.unit(unit).trained && !place.cuts(shards.unit(unit).replicated)) {
      held[static_cast<std::size_t>(unit)] = {0, shards.padded_numel(unit)};
    }
  }
  std::string because = share_text(blueprint.num_trained(), place, shards);
  if (size_of(options_.gradient_dtype) > size_of(options_.compute_dtype)) {
    because += fmt::format(", {} bytes more each than in {}: sums lose nothing to rounding",
                           size_of(options_.gradient_dtype) - size_of(options_.compute_dtype),
                           name_of(options_.compute_dtype));
  }
  add_units(RegionKind::kGradients, options_.gradient_dtype, held, because, place.space);

  // Backward writes f32. Unless whole f32 gradients are kept, a unit's gradient passes through a
  // bucket, and stays there until the reduction has read it.
  const bool through_bucket = cut || options_.gradient_dtype != DType::kF32;
  const DType leaves_as = cut ? DType::kF32 : options_.gradient_dtype;
  if (through_bucket) {
    add_buckets(RegionKind::kGradientBuckets, *make_codec(DType::kF32, DType::kF32), shards,
                /*from_first_write=*/true,
                /*to_next_visit=*/cut && options_.overlap,
                "whole units between backward and where their gradient is kept");
  }
  const std::unique_ptr<Codec> codec = make_codec(leaves_as, options_.wire_dtype);
  const bool travel_whole = !options_.gradient_code || shards.has_copies();
  if (shards.has_replicas() && !codec->is_identity() && travel_whole) {
    add_buckets(RegionKind::kWireBuckets, *codec, shards, /*from_first_write=*/false,
                /*to_next_visit=*/options_.overlap, "whole units as they travel");
  }
}

void MemoryPlan::plan_moment(RegionKind kind,
                             MomentExtent extent,
                             const Blueprint& blueprint,
                             const ShardMap& shards) {
  if (extent == MomentExtent::kAll) {
    add_states(kind, options_.moment_dtype, updated_,
               share_text(blueprint.num_trained(), placement().states, shards));
  } else if (extent == MomentExtent::kNotHiddenMatrices) {
    std::vector<Range> counted;
    for (int unit = 0; unit < shards.num_units(); ++unit) {
      std::int64_t elements = 0;
      for (const PlacedPiece& placed :
           pieces_with_moment(shards, unit, updated_[static_cast<std::size_t>(unit)], extent)) {
        elements += placed.piece.flat.size();
      }
      counted.push_back({0, elements});
    }
    add_states(kind, options_.moment_dtype, counted, "what is not a matrix of a block");
  }
}

void MemoryPlan::plan_signs(const SignLayout& signs) {
  check(!placement().states.is_cut() && options_.gradient_dtype == DType::kF32,
        "signs travel of whole units, from f32");
  std::vector<Range> whole;
  std::vector<Range> serving;
  for (std::size_t unit = 0; unit < owned_.size(); ++unit) {
    whole.push_back(owned_[unit]);
    serving.push_back({0, signs.serving(static_cast<int>(unit))});
  }
  add_units(RegionKind::kUnsent, DType::kF32, whole,
            "what the codes of momenta or gradients leave out, of all parameters", Space::kDevice);
  if (signs.ranks() > 1) {
    add_units(RegionKind::kServersUnsent, DType::kF32, serving,
              fmt::format("the same of the means that this rank codes for {} ranks", signs.ranks()),
              Space::kDevice);
  }
}

void MemoryPlan::plan_compression(const ShardMap& shards) {
  check(
      !options_.signs && !placement().gradients.is_cut() && options_.gradient_dtype == DType::kF32,
      "gradients are compressed of whole units, from f32");
  std::vector<Range> whole;
  for (int unit = 0; unit < shards.num_units(); ++unit) {
    whole.push_back({0, shards.padded_numel(unit)});
  }
  add_units(RegionKind::kUnsent, DType::kF32, whole,
            "what compressed gradients leave out, of all parameters", Space::kDevice);
}

std::int64_t MemoryPlan::parameter_read_bytes() const {
  std::int64_t elements = 0;
  for (const Range& owned : owned_) {
    elements = std::max(elements, owned.size());
  }
  const std::int64_t bytes = elements * size_of(options_.compute_dtype);
  return (bytes + kDiskBlockBytes - 1) / kDiskBlockBytes * kDiskBlockBytes + kDiskBlockBytes;
}

void MemoryPlan::find_units_apart() {
  if (!states_are_apart()) {
    return;
  }
  std::int64_t all = 0;
  for (const Range& owned : owned_) {
    all += owned.size();
  }
  std::int64_t apart = 0;
  const double wanted = options_.share_apart * static_cast<double>(all);
  while (static_cast<double>(apart) < wanted) {
    apart += owned(units_apart_++).size();
  }
  check(units_apart_ > 0 && (!parameters_are_apart() || apart == all),
        "{} of {} elements' states are offloaded, which is none or too few", apart, all);
}

/// Plans what passes through memory where masters and moments lie in another space.
void MemoryPlan::plan_windows() {
  if (!states_are_apart()) {
    return;
  }
  StateWindows::Passing passing{};
  const auto pass = [&](WindowTensor tensor, DType dtype) {
    passing.at(static_cast<std::size_t>(tensor)) = dtype;
  };
  const auto pass_state = [&](WindowTensor tensor, RegionKind kind) {
    if (has(kind) && region(kind).space == Space::kDisk) pass(tensor, dtype(kind));
  };
  if (!options_.device_is_host) {
    pass(WindowTensor::kGradient, options_.gradient_dtype);
  }
  const bool are_on_disk = placement().parameters.space == Space::kDisk;
  const bool are_rounded =
      has(RegionKind::kMaster) && dtype(RegionKind::kMaster) != options_.compute_dtype;
  if (are_rounded && (are_on_disk || (!parameters_are_apart() && !options_.device_is_host))) {
    pass(WindowTensor::kParameters, options_.compute_dtype);
  }
  if (are_on_disk && !has(RegionKind::kMaster)) {
    pass(WindowTensor::kMaster, options_.compute_dtype);
  }
  pass_state(WindowTensor::kMaster, RegionKind::kMaster);
  pass_state(WindowTensor::kFirstMoment, RegionKind::kFirstMoment);
  pass_state(WindowTensor::kSecondMoment, RegionKind::kSecondMoment);
  std::int64_t elements = 0;
  for (int unit = 0; unit < units_apart_; ++unit) {
    elements += owned(unit).size();
  }
  windows_ = StateWindows(elements, passing, options_.windows);
  regions_.push_back({RegionKind::kStateWindows, windows_.bytes(),
                      fmt::format("{} of the {} windows of {} elements", windows_.slots(),
                                  windows_.count(), windows_.size()),
                      options_.device_is_host ? Space::kDevice : Space::kHost});
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

std::int64_t MemoryPlan::bytes(Space space) const {
  std::int64_t total = 0;
  for (const Region& region : regions_) {
    total += region.space == space ? region.bytes : 0;
  }
  return total;
}

bool MemoryPlan::has_master(int unit) const {
  return has(RegionKind::kMaster) && updated(unit).size() > 0 &&
         place(RegionKind::kMaster, unit).held.size() == updated(unit).size();
}

Range MemoryPlan::owned(int unit) const {
  return owned_.at(static_cast<std::size_t>(unit));
}

Range MemoryPlan::updated(int unit) const {
  return updated_.at(static_cast<std::size_t>(unit));
}

const MemoryPlan::UnitRegion& MemoryPlan::unit_region(RegionKind kind) const {
  const auto found = std::find_if(unit_regions_.begin(), unit_regions_.end(),
                                  [&](const UnitRegion& region) { return region.kind == kind; });
  check(found != unit_regions_.end(), "the plan has no region \"{}\" of units", name_of(kind));
  return *found;
}

const MemoryPlan::UnitPlace& MemoryPlan::place(RegionKind kind, int unit) const {
  return unit_region(kind).places.at(static_cast<std::size_t>(unit));
}

DType MemoryPlan::dtype(RegionKind kind) const {
  return unit_region(kind).dtype;
}

const std::vector<int>& MemoryPlan::bucket_neighbours(RegionKind kind, int unit) const {
  return unit_region(kind).neighbours.at(static_cast<std::size_t>(unit));
}

const Tenancy& MemoryPlan::bucket_tenancy(RegionKind kind, int unit) const {
  return unit_region(kind).tenancies.at(static_cast<std::size_t>(unit));
}

const BufferPlacement& MemoryPlan::placement(BufferRef buffer) const {
  return placements_.at(static_cast<std::size_t>(buffer.index));
}

}  // namespace dstrain
