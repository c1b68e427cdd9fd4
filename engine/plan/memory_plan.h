// MemoryPlan: every byte that a rank will hold, by region, before anything is allocated. The Arena
// allocates exactly these regions; what an estimate prints and what a run holds are the same
// numbers. Pure arithmetic over a Blueprint and a ShardMap.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/plan/blueprint.h"
#include "engine/plan/shard_map.h"

namespace dstrain {

enum class RegionKind : std::uint8_t {
  kParameters,  ///< what the model computes with; in f32 runs the master itself
  kMaster,      ///< f32 copy that the optimizer updates; only in bf16 runs
  kGradients,   ///< f32
  kExpAvg,      ///< AdamW's m, f32
  kExpAvgSq,    ///< AdamW's v, f32
  kSaved,       ///< activations kept from forward to backward, one set per micro-batch in flight
  kScratch,     ///< buffers that live within one call
  kConstants    ///< tables filled at start
};
std::string name_of(RegionKind kind);

/// One allocation.
struct Region {
  RegionKind kind;
  std::int64_t bytes = 0;
  std::string because;  ///< the formula, for people
};

/// Where a buffer of the blueprint lies.
struct BufferPlacement {
  RegionKind region = RegionKind::kScratch;
  std::int64_t offset_bytes = 0;
};

struct MemoryOptions {
  DType compute_dtype = DType::kF32;
  int micro_batches_in_flight = 1;
  bool training = true;  ///< false: no gradients and no optimizer states
};

class MemoryPlan {
 public:
  /// Buffers start on cache lines.
  static constexpr std::int64_t kAlignmentBytes = 64;

  /// Plain data parallelism: every rank holds all of every unit.
  MemoryPlan(const Blueprint& blueprint, const ShardMap& shards, const MemoryOptions& options);

  [[nodiscard]] const std::vector<Region>& regions() const { return regions_; }
  [[nodiscard]] bool has(RegionKind kind) const;
  [[nodiscard]] const Region& region(RegionKind kind) const;
  /// Sum of all regions.
  [[nodiscard]] std::int64_t bytes() const;

  /// First element of a unit in the regions that hold whole units back to back.
  [[nodiscard]] std::int64_t unit_offset(int unit) const;
  [[nodiscard]] std::int64_t unit_numel(int unit) const;  ///< padding included
  [[nodiscard]] const BufferPlacement& placement(BufferRef buffer) const;
  /// Bytes between the same saved buffer of two micro-batches in flight.
  [[nodiscard]] std::int64_t saved_stride_bytes() const { return saved_stride_bytes_; }
  [[nodiscard]] const MemoryOptions& options() const { return options_; }

 private:
  MemoryOptions options_;
  std::vector<Region> regions_;
  std::vector<std::int64_t> unit_offsets_;  // one more than there are units
  std::vector<BufferPlacement> placements_;
  std::int64_t saved_stride_bytes_ = 0;
};

}  // namespace dstrain
