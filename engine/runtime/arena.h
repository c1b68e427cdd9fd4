// Arena: allocates exactly the regions of a MemoryPlan, one allocation each, and hands out tensors
// by declaration. The only allocator after start-up. Must not outlive its device.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/plan/blueprint.h"
#include "engine/plan/memory_plan.h"
#include "kernels/core/device.h"
#include "kernels/core/tensor.h"

namespace dstrain {

class Arena {
 public:
  /// `blueprint` and `plan` must outlive the arena. Throws OutOfMemory naming the region.
  Arena(const Blueprint& blueprint, const MemoryPlan& plan, Device& device);

  /// A buffer of the blueprint; `slot`: which micro-batch in flight, for saved ones.
  [[nodiscard]] Tensor buffer(BufferRef ref, int slot = 0) const;
  /// A unit's flat range in a region that holds units, padding included.
  [[nodiscard]] Tensor unit(RegionKind region, int unit) const;
  /// What the optimizer updates: the master copy, or the parameters themselves in f32 runs.
  [[nodiscard]] Tensor master(int unit) const;
  /// Bytes allocated so far: equal to plan.bytes().
  [[nodiscard]] std::int64_t bytes() const;

 private:
  [[nodiscard]] const DeviceMemory& memory(RegionKind kind) const;

  const Blueprint& blueprint_;
  const MemoryPlan& plan_;
  std::vector<DeviceMemory> regions_;  // in the plan's order
};

/// A parameter's tensor within its unit's flat one.
Tensor param_view(const Blueprint& blueprint, Tensor unit, ParamRef param);
/// `count` neighbouring parameters from `first` on, as one tensor of `shape`.
Tensor param_view(const Blueprint& blueprint, Tensor unit, ParamRef first, int count, Shape shape);

}  // namespace dstrain
