// StateCopies: finds which parts of what a rank keeps from step to step also exist elsewhere, bit
// for bit, and on which ranks. A replica check compares them; how it does so is not decided here.
// Pure arithmetic over a ShardMap and a MemoryPlan.
//
//   parameters   whole on every rank that has the unit; where they are cut, small units only
//   masters,     whole on every rank that has the unit; where they are cut, each has its slice
//   alone moments all three    norms, biases and shared key/value heads on tensor-parallel ranks; a
//   tied table on
//                the first and on the last pipeline stage
//   all of it    on the ranks that have the same slice, where there are some
//   parameters   beside a master: what the master rounds to, on the rank itself
//
// Not compared among data-parallel ranks, where these take updates of their own: parameters and
// momenta.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "engine/plan/memory_plan.h"
#include "engine/plan/shard_map.h"

namespace dstrain {

/// The ranks with which a part is compared.
enum class CopyHolders : std::uint8_t {
  kData,
  kExpertData,
  kSameSlice,
  kTensor,
  kSharedHeads,
  kTiedStages
};
constexpr int kNumCopyHolders = 6;

/// Neighbouring elements of one unit in one region that have the same copies.
struct StateSegment {
  RegionKind region = RegionKind::kParameters;
  int unit = 0;
  Range range;          ///< of the unit's flat buffer
  std::int64_t at = 0;  ///< of its first element in what the region holds of the unit
  std::array<bool, kNumCopyHolders> has_copies{};  ///< by CopyHolders
  bool has_master = false;  ///< of parameters: this rank has their f32 master in kMaster
  bool is_master = false;   ///< of masters: this rank computes with what they round to
};

/// The segments that have a copy or a master, unit by unit. `tensor_ranks` is the size of the
/// group.
std::vector<StateSegment> state_copies(const ShardMap& shards,
                                       const MemoryPlan& memory,
                                       int tensor_ranks);

}  // namespace dstrain
