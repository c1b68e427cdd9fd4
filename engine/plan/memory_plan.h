// MemoryPlan: every byte that a rank will hold, by region, before anything is allocated. The Arena
// allocates exactly these regions; what an estimate prints and what a run holds are the same
// numbers. Pure arithmetic over a Blueprint, a ShardMap and the order of visits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/plan/blueprint.h"
#include "engine/plan/compression_layout.h"
#include "engine/plan/gather_plan.h"
#include "engine/plan/placement.h"
#include "engine/plan/shard_map.h"
#include "engine/plan/sign_layout.h"
#include "engine/plan/state_windows.h"
#include "engine/plan/time_sharing.h"
#include "engine/plan/unit_walk.h"
#include "kernels/math/block_code.h"

namespace dstrain {

class Codec;

enum class RegionKind : std::uint8_t {
  kParameters,       ///< what the model computes with; the master itself where there is no other
  kSecondary,        ///< a second copy of parameters, cut over fewer ranks (Placement::secondary)
  kCodedTraffic,     ///< u8: what is on its way in a code (kernels/math/block_code.h, SignLayout)
  kGathered,         ///< units made whole for as long as they are used, where parameters are cut
  kParameterReads,   ///< slices of units on their way from a disk to where they are gathered
  kMaster,           ///< what the optimizer updates, where it is not the parameters themselves
  kGradients,        ///< what the optimizer reads
  kGradientBuckets,  ///< f32: a whole unit's gradient between backward and where it is kept
  kWireBuckets,      ///< a whole unit's gradient in the dtype that it travels in
  kFirstMoment,      ///< running averages of the optimizer
  kSecondMoment,
  kThirdMoment,
  kUnsent,         ///< f32: what a rank could not tell the others yet, as codes lose some of it
  kServersUnsent,  ///< f32: likewise of what it tells them of the mean (SignLayout)
  kStateWindows,   ///< what passes where masters and moments lie elsewhere (StateWindows)
  kSaved,      ///< activations kept from forward to backward, chunk by chunk: one set of a chunk's
               ///< for each of its micro-batches in flight
  kScratch,    ///< buffers that live within one call
  kConstants,  ///< tables filled at start, and scales
  kCache,      ///< generation: keys and values of earlier tokens
  kWhole       ///< copies of parameters: gathered to sample texts with, or a reference
};
std::string name_of(RegionKind kind);

/// One allocation.
struct Region {
  RegionKind kind;
  std::int64_t bytes = 0;
  std::string because;  ///< the formula, for people
  Space space = Space::kDevice;
};

/// The elements that have a moment (a running average that the optimizer keeps of each).
enum class MomentExtent : std::uint8_t {
  kNone,
  kAll,
  kNotHiddenMatrices  ///< Muon's second moment: ParamDecl::hidden_matrix has none
};

/// The place of a buffer of the blueprint.
struct BufferPlacement {
  RegionKind region = RegionKind::kScratch;
  std::int64_t offset_bytes = 0;
  Space space = Space::kDevice;
};

struct MemoryOptions {
  DType compute_dtype = DType::kF32;
  DType gradient_dtype = DType::kF32;  ///< accumulated in
  DType wire_dtype = DType::kF32;      ///< summed over the ranks in
  DType moment_dtype = DType::kF32;
  bool f32_master = true;  ///< false: the compute copy is the master, whatever its dtype
  MomentExtent first_moment = MomentExtent::kAll;
  MomentExtent second_moment = MomentExtent::kAll;
  bool third_moment = false;  ///< f32, of all elements
  /// True where data-parallel ranks take updates of their own (GradientTravel::kStays): the master
  /// is then what they agreed on last, and always beside the parameters.
  bool updates_alone = false;
  /// How what ranks exchange travels as signs; absent: it never does.
  std::optional<SignLayout> signs{};
  /// How gradients travel compressed; absent: they never do.
  std::optional<CompressionLayout> compression{};
  Placement placement{};
  int secondary_ranks = 1;  ///< that a second copy is cut over, and this rank's place among them
  int secondary_index = 0;
  /// In which units travel that are gathered from where they are cut; absent: as they are.
  std::optional<BlockCode> parameter_code{};
  /// In which units' gradients travel where they are cut, in place of wire_dtype; likewise. Sums
  /// over copies of slices travel in that nevertheless.
  std::optional<BlockCode> gradient_code{};
  bool overlap = false;  ///< a unit is reduced while the next one computes
  /// By unit, where parameters are cut, whether it is a small one that stays whole; empty: none is.
  std::vector<bool> always_whole;
  UnitWalk walk;            ///< of one micro-batch
  int parameter_reads = 4;  ///< slices that are on their way at once, where they lie on a disk
  std::int64_t gathered_elements = 0;  ///< GatherPlan::size(), where parameters are cut
  /// The number of micro-batches in flight, by chunk of the model.
  std::vector<int> slots = {1};
  bool training = true;  ///< false: no gradients and no optimizer states
  /// The least share of a rank's elements whose states lie where `placement` says, if that is not
  /// the device: those of its first units. The others' lie on the device.
  double share_apart = 1.0;
  bool device_is_host = false;  ///< the optimizer that runs on the host reaches what the model has
  WindowOptions windows{};
};

class MemoryPlan {
 public:
  /// Buffers start on cache lines.
  static constexpr std::int64_t kAlignmentBytes = 64;

  MemoryPlan(const Blueprint& blueprint, const ShardMap& shards, const MemoryOptions& options);

  [[nodiscard]] const std::vector<Region>& regions() const { return regions_; }
  [[nodiscard]] bool has(RegionKind kind) const;
  [[nodiscard]] const Region& region(RegionKind kind) const;
  /// Sum of all regions in a space.
  [[nodiscard]] std::int64_t bytes(Space space = Space::kDevice) const;
  [[nodiscard]] const MemoryOptions& options() const { return options_; }

  [[nodiscard]] const Placement& placement() const { return options_.placement; }
  /// True if masters and moments lie elsewhere than where the model computes.
  [[nodiscard]] bool states_are_apart() const { return placement().states.space != Space::kDevice; }
  [[nodiscard]] bool states_are_apart(int unit) const { return unit < units_apart_; }
  /// True if a unit has a master beside its parameters.
  [[nodiscard]] bool has_master(int unit) const;
  /// True if parameters lie elsewhere, and are copied to the device where they are gathered.
  [[nodiscard]] bool parameters_are_apart() const {
    return placement().parameters.space != Space::kDevice;
  }

  /// The windows in which the optimizer goes over them then.
  [[nodiscard]] const StateWindows& windows() const { return windows_; }

  /// The part of a unit that is this rank's, padding included: its slice, or all of it where states
  /// are not cut.
  [[nodiscard]] Range owned(int unit) const;
  /// The part that it updates: the same, or nothing of a unit that is not trained.
  [[nodiscard]] Range updated(int unit) const;

  /// The place of a unit in a region.
  struct UnitPlace {
    std::int64_t offset = 0;  ///< of its first element in the region
    Range held;               ///< elements of the unit's flat buffer; counted for partial moments
    Space space = Space::kDevice;  ///< a kind may have a region in each of two spaces
  };
  /// The bytes of one slice in kParameterReads, whole blocks of the disk around the largest.
  [[nodiscard]] std::int64_t parameter_read_bytes() const;
  /// Valid for the regions of parameters, masters, gradients, moments and buckets.
  [[nodiscard]] const UnitPlace& place(RegionKind kind, int unit) const;
  [[nodiscard]] DType dtype(RegionKind kind) const;
  /// The units whose bucket in kGradientBuckets or kWireBuckets lies, at another time, where this
  /// one's does, itself included.
  [[nodiscard]] const std::vector<int>& bucket_neighbours(RegionKind kind, int unit) const;
  /// The visits of MemoryOptions::walk during which a unit's bucket is in use, and its elements.
  [[nodiscard]] const Tenancy& bucket_tenancy(RegionKind kind, int unit) const;

  /// The elements of u8 as which a unit is gathered; 0: it travels as it is.
  [[nodiscard]] std::int64_t coded_parameters(const ShardMap& shards, int unit) const;
  /// Likewise of the slices of its gradient, all of them.
  [[nodiscard]] std::int64_t coded_gradients(const ShardMap& shards, int unit) const;

  [[nodiscard]] const BufferPlacement& placement(BufferRef buffer) const;
  /// The number of bytes between the same saved buffer of two micro-batches in flight in a chunk.
  [[nodiscard]] std::int64_t saved_stride_bytes(int chunk, Space space = Space::kDevice) const;
  /// The number of micro-batches for which there is such a buffer: MemoryOptions::slots of its
  /// chunk if it is saved, else 1.
  [[nodiscard]] int slots_of(const BufferDecl& buffer) const;
  /// The bytes that one copy of a buffer takes in its region.
  [[nodiscard]] static std::int64_t bytes_of(const BufferDecl& buffer);

 private:
  struct UnitRegion {
    RegionKind kind;
    DType dtype;
    std::vector<UnitPlace> places;             // by unit
    std::vector<std::vector<int>> neighbours;  // by unit; buckets only
    std::vector<Tenancy> tenancies;            // likewise
  };
  void plan_parameters(const Blueprint& blueprint, const ShardMap& shards);
  void plan_coded_traffic(const ShardMap& shards);
  void plan_gradients(const Blueprint& blueprint, const ShardMap& shards);
  void plan_moment(RegionKind kind,
                   MomentExtent extent,
                   const Blueprint& blueprint,
                   const ShardMap& shards);
  void plan_signs(const SignLayout& signs);
  void plan_compression(const ShardMap& shards);
  void plan_windows();
  void find_units_apart();
  /// Adds a region for the units whose states lie apart, in their space, and one for the others.
  void add_states(RegionKind kind,
                  DType dtype,
                  const std::vector<Range>& held,
                  const std::string& because);
  void plan_buffers(const Blueprint& blueprint);
  /// Places what all buffers saved in a space have been given places within their chunk of.
  void place_saved(const Blueprint& blueprint, Space space);
  void add_units(RegionKind kind,
                 DType dtype,
                 const std::vector<Range>& held,
                 std::string because,
                 Space space);
  void add_region_of_units(UnitRegion& units,
                           int begin,
                           int end,
                           const std::vector<Range>& held,
                           const std::string& because,
                           Space space);
  void add_buckets(RegionKind kind,
                   const Codec& codec,
                   const ShardMap& shards,
                   bool from_first_write,
                   bool to_next_visit,
                   const char* because);
  [[nodiscard]] const UnitRegion& unit_region(RegionKind kind) const;

  MemoryOptions options_;
  std::vector<Range> owned_;    // by unit
  std::vector<Range> updated_;  // likewise
  int units_apart_ = 0;
  StateWindows windows_;
  std::vector<Region> regions_;
  std::vector<UnitRegion> unit_regions_;
  std::vector<BufferPlacement> placements_;
  std::vector<std::int64_t> saved_strides_;       // by chunk
  std::vector<std::int64_t> host_saved_strides_;  // likewise, of what is saved in the host's memory
};

/// The parts of `range` (of a unit's flat buffer) whose elements have a moment of this extent.
std::vector<PlacedPiece> pieces_with_moment(const ShardMap& shards,
                                            int unit,
                                            Range range,
                                            MomentExtent extent);

}  // namespace dstrain
