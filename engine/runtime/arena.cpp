#include "engine/runtime/arena.h"

#include <algorithm>
#include <iterator>

#include "kernels/core/check.h"

namespace dstrain {

Arena::Arena(const Blueprint& blueprint, const MemoryPlan& plan, Device& device, Device* disk)
    : blueprint_(blueprint), plan_(plan) {
  for (const Region& region : plan.regions()) {
    const std::string name = name_of(region.kind);
    switch (region.space) {
      case Space::kDevice:
        regions_.push_back(device.allocate(region.bytes, name));
        break;
      case Space::kHost:
        regions_.push_back(device.allocate_host(region.bytes, name));
        break;
      case Space::kDisk:
        check(disk != nullptr, "{} on a disk that there is not", name);
        regions_.push_back(disk->allocate(region.bytes, name));
        break;
    }
  }
}

const DeviceMemory& Arena::memory(RegionKind kind) const {
  return memory(kind, plan_.region(kind).space);
}

const DeviceMemory& Arena::memory(RegionKind kind, Space space) const {
  for (std::size_t i = 0; i < regions_.size(); ++i) {
    if (plan_.regions()[i].kind == kind && plan_.regions()[i].space == space) {
      return regions_[i];
    }
  }
  fail_check(fmt::format("the arena has no region \"{}\"", name_of(kind)),
             std::source_location::current());
}

Tensor Arena::buffer(BufferRef ref, int slot) const {
  const BufferDecl& decl = blueprint_.buffers().at(static_cast<std::size_t>(ref.index));
  const BufferPlacement& placement = plan_.placement(ref);
  const bool saved = decl.lifetime == Lifetime::kSaved;
  const std::vector<int>& slots = plan_.options().slots;
  const int end = saved ? plan_.slots_of(decl) : *std::max_element(slots.begin(), slots.end());
  check(0 <= slot && slot < end, "slot {} of {} of buffer {}", slot, end, decl.name);
  const std::int64_t stride = saved ? plan_.saved_stride_bytes(decl.chunk, decl.space) : 0;
  std::byte* base = static_cast<std::byte*>(memory(placement.region, placement.space).data());
  const bool is_shaped = shapes_ != nullptr && ref.index < std::ssize(shapes_->buffers());
  const Shape& shape =
      is_shaped ? shapes_->buffers()[static_cast<std::size_t>(ref.index)].shape : decl.shape;
  return {base + placement.offset_bytes + slot * stride, decl.dtype, shape};
}

void Arena::shape_buffers(const Blueprint* shapes) {
  for (std::size_t i = 0; shapes != nullptr && i < shapes->buffers().size(); ++i) {
    const BufferDecl& own = blueprint_.buffers().at(i);
    const BufferDecl& other = shapes->buffers()[i];
    check(own.name == other.name && own.dtype == other.dtype && own.bytes() >= other.bytes(),
          "buffer {} of {} bytes cannot be {} of {}", own.name, own.bytes(), other.name,
          other.bytes());
  }
  shapes_ = shapes;
}

Tensor Arena::unit(RegionKind region, int unit) const {
  const MemoryPlan::UnitPlace& place = plan_.place(region, unit);
  const DType dtype = plan_.dtype(region);
  std::byte* base = static_cast<std::byte*>(memory(region, place.space).data());
  return {base + place.offset * size_of(dtype), dtype, Shape{place.held.size()}};
}

Tensor Arena::master(int unit) const {
  return master_is_parameters(unit) ? owned_parameters(unit)
                                    : this->unit(RegionKind::kMaster, unit);
}

Tensor Arena::owned_parameters(int unit) const {
  const Range held = plan_.place(RegionKind::kParameters, unit).held;
  const Range owned = plan_.owned(unit);
  return this->unit(RegionKind::kParameters, unit)
      .flat(owned.begin - held.begin, owned.end - held.begin);
}

Tensor Arena::gathered(std::int64_t offset, std::int64_t elements) const {
  const DType dtype = plan_.options().compute_dtype;
  const DeviceMemory& region = memory(RegionKind::kGathered);
  check(0 <= offset && (offset + elements) * size_of(dtype) <= region.bytes(),
        "elements [{}, {}) of {} bytes of gathered parameters", offset, offset + elements,
        region.bytes());
  return {static_cast<std::byte*>(region.data()) + offset * size_of(dtype), dtype, Shape{elements}};
}

Tensor Arena::coded_traffic(std::int64_t bytes) const {
  const DeviceMemory& region = memory(RegionKind::kCodedTraffic);
  check(bytes <= region.bytes(), "{} of {} bytes of coded traffic", bytes, region.bytes());
  return {region.data(), DType::kU8, Shape{bytes}};
}

Tensor Arena::state_windows() const {
  const DeviceMemory& region = memory(RegionKind::kStateWindows);
  return {region.data(), DType::kU8, Shape{region.bytes()}};
}

Tensor Arena::parameter_reads() const {
  const DeviceMemory& region = memory(RegionKind::kParameterReads);
  return {region.data(), DType::kU8, Shape{region.bytes()}};
}

Space Arena::space(RegionKind kind, int unit) const {
  const bool is_parameters = kind == RegionKind::kMaster && master_is_parameters(unit);
  return plan_.place(is_parameters ? RegionKind::kParameters : kind, unit).space;
}

std::int64_t Arena::bytes(RegionKind kind) const {
  std::int64_t total = 0;
  for (std::size_t i = 0; i < regions_.size(); ++i) {
    total += plan_.regions()[i].kind == kind ? regions_[i].bytes() : 0;
  }
  return total;
}

std::int64_t Arena::bytes(Space space) const {
  std::int64_t total = 0;
  for (std::size_t i = 0; i < regions_.size(); ++i) {
    total += plan_.regions()[i].space == space ? regions_[i].bytes() : 0;
  }
  return total;
}

}  // namespace dstrain
