// Buckets: a region that whole units pass through, several of them at different times in the same
// memory, and the events that keep one from overwriting another.
#pragma once

#include <vector>

#include "engine/plan/memory_plan.h"
#include "engine/runtime/arena.h"

namespace dstrain {

class Buckets {
 public:
  /// `kind` is kGradientBuckets or kWireBuckets. `arena` and `memory` outlive this.
  Buckets(const Arena& arena, const MemoryPlan& memory, RegionKind kind, int num_units)
      : arena_(arena),
        memory_(memory),
        kind_(kind),
        released_(static_cast<std::size_t>(num_units)) {}

  /// Returns a unit's bucket, padding included. `writer` first waits for all that used its memory
  /// before.
  Tensor acquire(int unit, Stream& writer) {
    for (const int neighbour : memory_.bucket_neighbours(kind_, unit)) {
      Event& released = released_.at(static_cast<std::size_t>(neighbour));
      if (released.stream != nullptr && released.stream != &writer) {
        writer.wait(released);
      }
    }
    return arena_.unit(kind_, unit);
  }
  /// Says that nothing reads the bucket once `reader` has got here.
  void release(int unit, Stream& reader) {
    released_.at(static_cast<std::size_t>(unit)) = reader.record();
  }

 private:
  const Arena& arena_;
  const MemoryPlan& memory_;
  RegionKind kind_;
  std::vector<Event> released_;  // by unit
};

}  // namespace dstrain
