#include "engine/plan/blueprint.h"

#include <algorithm>
#include <utility>

#include "kernels/core/check.h"

namespace dstrain {

Shape ParamDecl::box_start() const {
  if (share.start.rank() > 0) {
    return share.start;
  }
  Shape start;
  for (int dim = 0; dim < shape.rank(); ++dim) {
    start.push_back(0);
  }
  return start;
}

Shape ParamDecl::box_extent() const {
  const Shape& local = local_shape();
  const Shape start = box_start();
  Shape extent;
  for (int dim = 0; dim < shape.rank(); ++dim) {
    extent.push_back(std::clamp<std::int64_t>(shape[dim] - start[dim], 0, local[dim]));
  }
  return extent;
}

std::int64_t UnitDecl::numel() const {
  return offset_of(static_cast<int>(params.size()));
}

std::int64_t UnitDecl::offset_of(int index) const {
  std::int64_t offset = 0;
  for (int i = 0; i < index; ++i) {
    offset += params.at(static_cast<std::size_t>(i)).local_shape().numel();
  }
  return offset;
}

int Blueprint::begin_unit(std::string name) {
  units_.push_back({std::move(name), {}});
  return static_cast<int>(units_.size()) - 1;
}

ParamRef Blueprint::add_param(ParamDecl param) {
  check(!units_.empty(), "parameter {} declared before any unit", param.name);
  UnitDecl& unit = units_.back();
  unit.params.push_back(std::move(param));
  return {static_cast<int>(units_.size()) - 1, static_cast<int>(unit.params.size()) - 1};
}

BufferRef Blueprint::add_buffer(BufferDecl buffer) {
  const auto found = std::find_if(buffers_.begin(), buffers_.end(),
                                  [&](const BufferDecl& b) { return b.name == buffer.name; });
  if (found == buffers_.end()) {
    buffers_.push_back(std::move(buffer));
    return {static_cast<int>(buffers_.size()) - 1};
  }
  check(found->lifetime == buffer.lifetime && buffer.lifetime != Lifetime::kSaved,
        "buffer {} declared twice; only scratch and constants are shared", buffer.name);
  if (found->bytes() < buffer.bytes()) {
    *found = std::move(buffer);
  }
  return {static_cast<int>(found - buffers_.begin())};
}

const ParamDecl& Blueprint::param(ParamRef ref) const {
  return units_.at(static_cast<std::size_t>(ref.unit))
      .params.at(static_cast<std::size_t>(ref.index));
}

std::int64_t Blueprint::num_parameters() const {
  std::int64_t total = 0;
  for (const UnitDecl& unit : units_) {
    total += unit.numel();
  }
  return total;
}

}  // namespace dstrain
