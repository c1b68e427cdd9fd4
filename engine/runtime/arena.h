// Arena: allocates exactly the regions of a MemoryPlan, one allocation each in the space that the
// plan names, and hands out tensors by declaration. The only allocator after start-up. Must not
// outlive its device.
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
  /// `blueprint` and `plan` must outlive the arena. Regions in the host's memory are of the kind
  /// that copies to and from `device` are fastest with; those on a disk are of `disk`, which may be
  /// nullptr where there are none. Throws OutOfMemory naming the region.
  Arena(const Blueprint& blueprint, const MemoryPlan& plan, Device& device, Device* disk = nullptr);

  /// A buffer of the blueprint; `slot` says for which micro-batch in flight. Each micro-batch has
  /// its own saved buffers; the others serve all.
  [[nodiscard]] Tensor buffer(BufferRef ref, int slot = 0) const;
  /// Gives buffers, from now on, the shapes of `shapes`, which declares the same ones, none of them
  /// larger, and may leave out the last; nullptr gives them their own again. It must outlive its
  /// use.
  void shape_buffers(const Blueprint* shapes);
  /// The part of a unit that a region holds (MemoryPlan::place), flat.
  [[nodiscard]] Tensor unit(RegionKind region, int unit) const;
  /// The part of a unit's master that this rank updates (MemoryPlan::owned): the f32 copy, or the
  /// parameters themselves where there is none.
  [[nodiscard]] Tensor master(int unit) const;
  /// The same elements of the parameters that the model computes with.
  [[nodiscard]] Tensor owned_parameters(int unit) const;
  /// True if the unit's parameters themselves are its master.
  [[nodiscard]] bool master_is_parameters(int unit) const { return !plan_.has_master(unit); }
  /// Elements of the region of gathered parameters.
  [[nodiscard]] Tensor gathered(std::int64_t offset, std::int64_t elements) const;
  /// The first `bytes` of the memory of traffic in a code.
  [[nodiscard]] Tensor coded_traffic(std::int64_t bytes) const;
  /// All bytes of the windows that states pass in.
  [[nodiscard]] Tensor state_windows() const;
  /// The memory of RegionKind::kParameterReads, as bytes.
  [[nodiscard]] Tensor parameter_reads() const;
  /// The space in which a unit lies that regions of a kind hold; valid for masters also where the
  /// parameters themselves are the master.
  [[nodiscard]] Space space(RegionKind kind, int unit) const;
  /// The bytes allocated in a space, equal to plan.bytes(space), and those of all regions of a
  /// kind.
  [[nodiscard]] std::int64_t bytes(Space space = Space::kDevice) const;
  [[nodiscard]] std::int64_t bytes(RegionKind kind) const;

 private:
  [[nodiscard]] const DeviceMemory& memory(RegionKind kind) const;
  [[nodiscard]] const DeviceMemory& memory(RegionKind kind, Space space) const;

  const Blueprint& blueprint_;
  const Blueprint* shapes_ = nullptr;
  const MemoryPlan& plan_;
  std::vector<DeviceMemory> regions_;  // in the plan's order
};

/// `count` neighbouring parameters of a whole unit, from `first` on, as one tensor of `shape`.
/// View: Tensor or ConstTensor.
template <typename View>
View param_view(const Blueprint& blueprint, View unit, ParamRef first, int count, Shape shape) {
  const UnitDecl& decl = blueprint.units().at(static_cast<std::size_t>(first.unit));
  return unit.flat(decl.offset_of(first.index), decl.offset_of(first.index + count)).view(shape);
}
/// A parameter's tensor within its whole unit.
template <typename View>
View param_view(const Blueprint& blueprint, View unit, ParamRef param) {
  return param_view(blueprint, unit, param, 1, blueprint.param(param).local_shape());
}

}  // namespace dstrain
