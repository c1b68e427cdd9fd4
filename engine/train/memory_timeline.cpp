#include "engine/train/memory_timeline.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "kernels/core/check.h"

namespace dstrain {
namespace {

using Kind = MemoryMoment::Kind;

/// Walks a rank's actions and keeps track of the memory in use.
class Bookkeeper {
 public:
  explicit Bookkeeper(const RunPlan& plan) : plan_(plan) {
    count_standing();
    count_buffers();
    std::int64_t visits = 0;
    for (const ChunkPlan& chunk : plan.chunks) {
      first_visits_.push_back(visits);
      visits += static_cast<std::int64_t>(chunk.stage.backward_walk().size());
    }
    buckets_of_visits_.resize(static_cast<std::size_t>(visits));
    for (const RegionKind kind : {RegionKind::kGradientBuckets, RegionKind::kWireBuckets}) {
      for (int unit = 0; plan.memory.has(kind) && unit < plan.shards.num_units(); ++unit) {
        if (!plan.shards.unit(unit).trained) continue;
        const Tenancy& tenancy = plan.memory.bucket_tenancy(kind, unit);
        buckets_of_visits_.at(static_cast<std::size_t>(tenancy.begin))
            .push_back(
                {.kind = kind, .unit = unit, .visits_left = tenancy.end - tenancy.begin + 1});
      }
    }
    for (const GatherPlan& walk : plan.gathers) {
      gathered_.push_back(count_gathered(walk));
    }
  }

  MemoryTimeline keep() {
    for (const Action& action : plan_.actions) {
      if (action.kind == Action::Kind::kForward) {
        forward(action);
      } else if (action.kind == Action::Kind::kBackward) {
        backward(action);
      }
    }
    ComponentBytes update = now_;
    update += of_update_;
    note({.kind = Kind::kUpdate, .in_use = update}, elements_of_update());
    return finish();
  }

 private:
  /// Memory that lives within one visit.
  struct Scratch {
    ComponentBytes forward;
    ComponentBytes backward;
  };

  /// Parameters, gradients, optimizer states and tables: in use all the time.
  void count_standing() {
    for (const Region& region : plan_.memory.regions()) {
      const bool by_time =
          region.kind == RegionKind::kSaved || region.kind == RegionKind::kScratch ||
          region.kind == RegionKind::kGathered || region.kind == RegionKind::kGradientBuckets ||
          region.kind == RegionKind::kWireBuckets;
      if (!by_time && region.space == Space::kDevice) {
        now_[component_of(region.kind)] += region.bytes;
      }
    }
  }

  void count_buffers() {
    const std::size_t units = plan_.blueprint.units().size();
    saved_.resize(units);
    scratch_.resize(units);
    saved_of_chunk_.resize(plan_.chunks.size());
    scratch_of_chunk_.resize(plan_.chunks.size());
    for (const BufferDecl& buffer : plan_.blueprint.buffers()) {
      const std::int64_t bytes = MemoryPlan::bytes_of(buffer);
      const MemoryComponent component = component_of(buffer);
      if (buffer.lifetime == Lifetime::kConstant || buffer.lifetime == Lifetime::kCache ||
          buffer.lifetime == Lifetime::kWhole || buffer.space != Space::kDevice) {
        continue;  // standing, or not on the device
      }
      if (buffer.chunk == BufferDecl::kNoChunk) {
        of_update_[component] += bytes;
        continue;
      }
      const auto count = [&](ComponentBytes& saved, Scratch& scratch) {
        if (buffer.lifetime == Lifetime::kSaved) {
          saved[component] += bytes;
        } else {
          scratch.forward[component] += buffer.in_backward_only ? 0 : bytes;
          scratch.backward[component] += bytes;
        }
      };
      if (buffer.units.empty()) {
        const auto chunk = static_cast<std::size_t>(buffer.chunk);
        count(saved_of_chunk_[chunk], scratch_of_chunk_[chunk]);
      }
      for (const int unit : buffer.units) {
        count(saved_[static_cast<std::size_t>(unit)], scratch_[static_cast<std::size_t>(unit)]);
      }
    }
  }

  void forward(const Action& action) {
    const auto chunk = static_cast<std::size_t>(action.chunk);
    const ChunkPlan& plan = plan_.chunks[chunk];
    for (int k = 0; k < action.together; ++k) {
      now_ += saved_of_chunk_[chunk];
    }
    const UnitWalk& walk = plan.stage.forward_walk();
    for_each_visit(action, walk, [&](std::size_t i, int micro_batch) {
      now_ += saved_[static_cast<std::size_t>(walk[i].unit)];
      ComponentBytes in_use = now_;
      in_use += scratch_of_chunk_[chunk].forward;
      in_use += scratch_[static_cast<std::size_t>(walk[i].unit)].forward;
      in_use[MemoryComponent::kGatherBuffers] +=
          gathered_at(plan.forward_walk, static_cast<std::int64_t>(i), /*walk_comes_again=*/false);
      in_use[MemoryComponent::kBuckets] += bytes_of_buckets();
      settle_buckets();
      note({.kind = Kind::kForward,
            .micro_batch = micro_batch,
            .unit = walk[i].unit,
            .in_use = in_use},
           work_of(walk[i]));
    });
  }

  void backward(const Action& action) {
    const auto chunk = static_cast<std::size_t>(action.chunk);
    const ChunkPlan& plan = plan_.chunks[chunk];
    const UnitWalk& walk = plan.stage.backward_walk();
    const bool goes_on = plan.backward_walk == ChunkPlan::kGoesOn;
    const std::size_t before = goes_on ? plan.stage.forward_walk().size() : 0;
    const bool is_last = action.micro_batch + action.together == plan_.batch.accumulation;
    for_each_visit(action, walk, [&](std::size_t i, int micro_batch) {
      ComponentBytes in_use = now_;
      in_use += scratch_of_chunk_[chunk].backward;
      in_use += scratch_[static_cast<std::size_t>(walk[i].unit)].backward;
      in_use[MemoryComponent::kGatherBuffers] +=
          gathered_at(goes_on ? plan.forward_walk : plan.backward_walk,
                      static_cast<std::int64_t>(before + i), goes_on && !is_last);
      if (micro_batch == action.micro_batch) {
        fill_buckets(chunk, static_cast<std::int64_t>(i), is_last);
      }
      in_use[MemoryComponent::kBuckets] += bytes_of_buckets();
      if (micro_batch + 1 == action.micro_batch + action.together) {
        settle_buckets();
      }
      note({.kind = Kind::kBackward,
            .micro_batch = micro_batch,
            .unit = walk[i].unit,
            .in_use = in_use},
           work_of(walk[i]));
      now_ -= saved_[static_cast<std::size_t>(walk[i].unit)];
    });
    for (int k = 0; k < action.together; ++k) {
      now_ -= saved_of_chunk_[chunk];
    }
  }

  /// Calls work(visit, micro-batch) in the order of a pass, in which micro-batches that go together
  /// make each visit one after the other.
  template <typename Work>
  static void for_each_visit(const Action& action, const UnitWalk& walk, Work&& work) {
    for (std::size_t i = 0; i < walk.size(); ++i) {
      for (int k = action.micro_batch; k < action.micro_batch + action.together; ++k) {
        work(i, k);
      }
    }
  }

  /// Elements that a walk holds or that are on their way, by visit.
  struct Gathered {
    std::vector<std::int64_t> at;
    /// At the last visit, the elements that the walk begins with when it is repeated.
    std::int64_t early = 0;
  };
  [[nodiscard]] Gathered count_gathered(const GatherPlan& plan) const {
    const auto visits = static_cast<std::int64_t>(plan.walk().size());
    Gathered gathered{.at = std::vector<std::int64_t>(plan.walk().size())};
    for (const Gather& gather : plan.gathers()) {
      const std::int64_t elements = plan_.shards.padded_numel(gather.unit);
      for (std::int64_t visit = std::max<std::int64_t>(gather.start, 0); visit <= gather.last_use;
           ++visit) {
        gathered.at[static_cast<std::size_t>(visit)] += elements;
      }
      gathered.early += gather.start < 0 && gather.last_use + 1 < visits ? elements : 0;
    }
    return gathered;
  }

  /// `walk_comes_again`: the last visit of the walk starts the gathers that the next micro-batch
  /// begins with.
  [[nodiscard]] std::int64_t gathered_at(int walk,
                                         std::int64_t visit,
                                         bool walk_comes_again) const {
    if (gathered_.empty()) {
      return 0;
    }
    const Gathered& gathered = gathered_.at(static_cast<std::size_t>(walk));
    const bool starts_next =
        walk_comes_again && visit + 1 == static_cast<std::int64_t>(gathered.at.size());
    const std::int64_t elements =
        gathered.at.at(static_cast<std::size_t>(visit)) + (starts_next ? gathered.early : 0);
    return elements * size_of(plan_.memory.options().compute_dtype);
  }

  /// A bucket that a visit fills or that is on its way, and for how many more visits of this rank,
  /// whichever micro-batch and chunk they belong to.
  struct Bucket {
    RegionKind kind;
    int unit = 0;
    std::int64_t visits_left = 0;
  };

  /// Adds the buckets whose time begins with this visit of a chunk's backward.
  void fill_buckets(std::size_t chunk, std::int64_t visit, bool last_micro_batch) {
    const std::int64_t here = first_visits_[chunk] + visit;
    for (const Bucket& bucket : buckets_of_visits_.at(static_cast<std::size_t>(here))) {
      // Gradients that are whole on every rank are summed over the ranks once a step.
      const bool used = bucket.kind == RegionKind::kGradientBuckets ||
                        plan_.memory.placement().gradients.is_cut() || last_micro_batch;
      if (used) {
        buckets_.push_back(bucket);
      }
    }
  }

  /// Counts the memory under the buckets once: where two share it, the later one waits until the
  /// other has left (Buckets::acquire), as when a backward begins while the embedding's gradient of
  /// the previous micro-batch is still on its way.
  [[nodiscard]] std::int64_t bytes_of_buckets() const {
    std::int64_t bytes = 0;
    for (const RegionKind kind : {RegionKind::kGradientBuckets, RegionKind::kWireBuckets}) {
      std::vector<Range> places;
      for (const Bucket& bucket : buckets_) {
        if (bucket.kind == kind) {
          const MemoryPlan::UnitPlace& place = plan_.memory.place(kind, bucket.unit);
          places.push_back({place.offset, place.offset + place.held.size()});
        }
      }
      std::sort(places.begin(), places.end(),
                [](const Range& a, const Range& b) { return a.begin < b.begin; });
      std::int64_t elements = 0;
      std::int64_t end = 0;
      for (const Range& place : places) {
        elements += std::max<std::int64_t>(0, place.end - std::max(end, place.begin));
        end = std::max(end, place.end);
      }
      bytes += elements == 0 ? 0 : elements * size_of(plan_.memory.dtype(kind));
    }
    return bytes;
  }

  /// Called at the end of a visit.
  void settle_buckets() {
    for (Bucket& bucket : buckets_) {
      bucket.visits_left -= 1;
    }
    std::erase_if(buckets_, [](const Bucket& bucket) { return bucket.visits_left == 0; });
  }

  /// Elements that a visit multiplies with, once for each product of their size.
  [[nodiscard]] double work_of(const UnitVisit& visit) const {
    const bool backward = visit.pass == Pass::kBackward;
    double work = 0.0;
    for (const int unit : visit.reads) {
      const UnitDecl& decl = plan_.blueprint.units()[static_cast<std::size_t>(unit)];
      for (const ParamDecl& param : decl.params) {
        const auto elements = static_cast<double>(param.local_shape().numel());
        const bool table = !param.hidden_matrix && param.shape.rank() == 2;
        if (param.hidden_matrix) {
          work += elements * (backward ? 2 + (computes_again(decl) ? 1 : 0) : 1);
        } else if (table && backward) {
          work += elements * 3;  // the head computes its logits when backward begins
        }
      }
    }
    return work;
  }

  [[nodiscard]] bool computes_again(const UnitDecl& unit) const {
    constexpr std::string_view kBlock = "blocks.";
    return unit.name.starts_with(kBlock) &&
           plan_.recompute.of_block(std::stoll(unit.name.substr(kBlock.size()))) ==
               RecomputeGranularity::kFull;
  }

  [[nodiscard]] double elements_of_update() const {
    double elements = 0.0;
    for (int unit = 0; unit < plan_.shards.num_units(); ++unit) {
      elements += static_cast<double>(plan_.memory.updated(unit).size());
    }
    return elements;
  }

  void note(MemoryMoment moment, double work) {
    moment.begin = work_;
    work_ += work;
    timeline_.moments.push_back(moment);
  }

  MemoryTimeline finish() {
    std::vector<MemoryMoment>& moments = timeline_.moments;
    for (MemoryMoment& moment : moments) {
      moment.begin /= std::max(work_, 1.0);
    }
    const auto highest = std::max_element(moments.begin(), moments.end(),
                                          [](const MemoryMoment& a, const MemoryMoment& b) {
                                            return a.in_use.total() < b.in_use.total();
                                          });
    timeline_.peak = static_cast<std::size_t>(highest - moments.begin());
    timeline_.held = component_bytes(plan_.blueprint, plan_.memory);
    for (const MemoryComponent component : kMemoryComponents) {
      check(highest->in_use[component] <= timeline_.held[component],
            "{} bytes of {} in use, and {} held", highest->in_use[component], name_of(component),
            timeline_.held[component]);
    }
    return std::move(timeline_);
  }

  const RunPlan& plan_;
  ComponentBytes now_;                          // without memory that lives within one visit
  ComponentBytes of_update_;                    // the additional memory of the optimizer step
  std::vector<ComponentBytes> saved_;           // by unit
  std::vector<ComponentBytes> saved_of_chunk_;  // of no unit
  std::vector<Scratch> scratch_;                // by unit
  std::vector<Scratch> scratch_of_chunk_;       // of no unit
  std::vector<std::int64_t> first_visits_;      // of each chunk's backward, in the walk of all
  std::vector<std::vector<Bucket>> buckets_of_visits_;  // by the visit that first fills them
  std::vector<Gathered> gathered_;                      // by walk
  std::vector<Bucket> buckets_;                         // in use
  double work_ = 0.0;
  MemoryTimeline timeline_;
};

}  // namespace

MemoryTimeline memory_timeline(const RunPlan& plan) {
  return Bookkeeper(plan).keep();
}

std::string describe(const MemoryMoment& moment, const Blueprint& blueprint) {
  if (moment.kind == Kind::kUpdate) {
    return "optimizer step";
  }
  return fmt::format("{} of micro-batch {}, {}",
                     moment.kind == Kind::kForward ? "forward" : "backward", moment.micro_batch,
                     blueprint.units()[static_cast<std::size_t>(moment.unit)].name);
}

}  // namespace dstrain
