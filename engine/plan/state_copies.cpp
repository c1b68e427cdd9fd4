#include "engine/plan/state_copies.h"

#include <algorithm>
#include <array>

namespace dstrain {
namespace {

bool same_copies(const StateSegment& a, const StateSegment& b) {
  return a.has_copies == b.has_copies && a.has_master == b.has_master && a.is_master == b.is_master;
}

class Collector {
 public:
  Collector(const ShardMap& shards, const MemoryPlan& memory, int tensor_ranks)
      : shards_(shards), memory_(memory), tensor_ranks_(tensor_ranks) {}

  std::vector<StateSegment> collect() {
    const MemoryOptions& options = memory_.options();
    for (int unit = 0; unit < shards_.num_units(); ++unit) {
      add_region(RegionKind::kParameters, unit, MomentExtent::kAll);
      if (memory_.has_master(unit)) add_region(RegionKind::kMaster, unit, MomentExtent::kAll);
      if (!shards_.unit(unit).trained) continue;
      add_region(RegionKind::kFirstMoment, unit, options.first_moment);
      add_region(RegionKind::kSecondMoment, unit, options.second_moment);
      if (options.third_moment && !options.updates_alone) {
        add_region(RegionKind::kThirdMoment, unit, MomentExtent::kAll);
      }
    }
    return std::move(segments_);
  }

 private:
  void add_region(RegionKind region, int unit, MomentExtent extent) {
    if (extent == MomentExtent::kNone) return;
    const Range held = memory_.place(region, unit).held;
    const Range owned = memory_.owned(unit);
    const Range range = region == RegionKind::kParameters ? held : owned;
    std::int64_t packed = 0;
    for (const PlacedPiece& placed : pieces_with_moment(shards_, unit, range, extent)) {
      const Range whole{placed.offset, placed.offset + placed.piece.flat.size()};
      const std::int64_t at = extent == MomentExtent::kAll ? whole.begin - range.begin : packed;
      packed += whole.size();
      // Parameters that this rank owns have a master here; those next to them do not.
      const std::array<std::int64_t, 4> cuts = {
          whole.begin, std::clamp(owned.begin, whole.begin, whole.end),
          std::clamp(owned.end, whole.begin, whole.end), whole.end};
      for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
        const Range part{cuts[i], cuts[i + 1]};
        if (part.size() > 0) add(region, unit, part, at + part.begin - whole.begin, placed.param);
      }
    }
  }

  void add(RegionKind region, int unit, Range range, std::int64_t at, int param) {
    const UnitDecl& decl = shards_.unit(unit);
    const ParamDecl& declared = decl.params[static_cast<std::size_t>(param)];
    const Range owned = memory_.owned(unit);
    const bool is_owned = owned.begin <= range.begin && range.end <= owned.end;
    const Range held = memory_.place(region, unit).held;
    const Placement& placement = memory_.placement();
    const bool is_whole = region == RegionKind::kParameters
                              ? held.size() >= shards_.numel(unit)
                              : !placement.states.cuts(decl.replicated);
    StateSegment segment{.region = region, .unit = unit, .range = range, .at = at};
    const auto with = [&](CopyHolders holders) -> bool& {
      return segment.has_copies.at(static_cast<std::size_t>(holders));
    };
    const bool is_own = memory_.options().updates_alone &&
                        (region == RegionKind::kParameters || region == RegionKind::kFirstMoment);
    const bool of_experts = decl.replicated == Axis::kExpertData;
    with(of_experts ? CopyHolders::kExpertData : CopyHolders::kData) =
        shards_.num_slices(unit) > 1 && is_whole && !is_own;
    with(CopyHolders::kSameSlice) = shards_.num_copies(unit) > 1;
    const bool everywhere = declared.share.copies == tensor_ranks_;
    with(CopyHolders::kTensor) = declared.share.copies > 1 && everywhere;
    with(CopyHolders::kSharedHeads) = declared.share.copies > 1 && !everywhere;
    // The table is a unit of its own on both pipeline stages, so its slices are the same; where
    // parameters are cut, each stage decides which units stay whole.
    const bool only_mine = placement.parameters.is_cut();
    with(CopyHolders::kTiedStages) = declared.tied_across_stages && (is_owned || !only_mine);
    segment.has_master =
        region == RegionKind::kParameters && memory_.has_master(unit) && is_owned && !is_own;
    segment.is_master = region == RegionKind::kMaster && !memory_.options().updates_alone;
    if (same_copies(segment, {})) return;
    if (!segments_.empty()) {
      StateSegment& last = segments_.back();
      if (last.region == region && last.unit == unit && last.range.end == range.begin &&
          last.at + last.range.size() == at && same_copies(last, segment)) {
        last.range.end = range.end;
        return;
      }
    }
    segments_.push_back(segment);
  }

  const ShardMap& shards_;
  const MemoryPlan& memory_;
  int tensor_ranks_;
  std::vector<StateSegment> segments_;
};

}  // namespace

std::vector<StateSegment> state_copies(const ShardMap& shards,
                                       const MemoryPlan& memory,
                                       int tensor_ranks) {
  return Collector(shards, memory, tensor_ranks).collect();
}

}  // namespace dstrain
