#include "engine/runtime/arena.h"

#include "kernels/core/check.h"

namespace dstrain {

Arena::Arena(const Blueprint& blueprint, const MemoryPlan& plan, Device& device)
    : blueprint_(blueprint), plan_(plan) {
  for (const Region& region : plan.regions()) {
    regions_.push_back(device.allocate(region.bytes, name_of(region.kind)));
  }
}

const DeviceMemory& Arena::memory(RegionKind kind) const {
  for (std::size_t i = 0; i < regions_.size(); ++i) {
    if (plan_.regions()[i].kind == kind) {
      return regions_[i];
    }
  }
  fail_check(fmt::format("the arena has no region \"{}\"", name_of(kind)),
             std::source_location::current());
}

Tensor Arena::buffer(BufferRef ref, int slot) const {
  const BufferDecl& decl = blueprint_.buffers().at(static_cast<std::size_t>(ref.index));
  const BufferPlacement& placement = plan_.placement(ref);
  check(slot == 0 ||
            (decl.lifetime == Lifetime::kSaved && slot < plan_.options().micro_batches_in_flight),
        "slot {} of buffer {}", slot, decl.name);
  std::byte* base = static_cast<std::byte*>(memory(placement.region).data());
  return {base + placement.offset_bytes + slot * plan_.saved_stride_bytes(), decl.dtype,
          decl.shape};
}

Tensor Arena::unit(RegionKind region, int unit) const {
  const DType dtype =
      region == RegionKind::kParameters ? plan_.options().compute_dtype : DType::kF32;
  std::byte* base = static_cast<std::byte*>(memory(region).data());
  return {base + plan_.unit_offset(unit) * size_of(dtype), dtype, Shape{plan_.unit_numel(unit)}};
}

Tensor Arena::master(int unit) const {
  return this->unit(plan_.has(RegionKind::kMaster) ? RegionKind::kMaster : RegionKind::kParameters,
                    unit);
}

std::int64_t Arena::bytes() const {
  std::int64_t total = 0;
  for (const DeviceMemory& region : regions_) {
    total += region.bytes();
  }
  return total;
}

Tensor param_view(const Blueprint& blueprint, Tensor unit, ParamRef param) {
  return param_view(blueprint, unit, param, 1, blueprint.param(param).shape);
}

Tensor param_view(const Blueprint& blueprint, Tensor unit, ParamRef first, int count, Shape shape) {
  const UnitDecl& decl = blueprint.units().at(static_cast<std::size_t>(first.unit));
  return unit.flat(decl.offset_of(first.index), decl.offset_of(first.index + count)).view(shape);
}

}  // namespace dstrain
