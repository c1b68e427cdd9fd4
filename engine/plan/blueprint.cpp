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
    offset += params.at(static_cast<std::size_t>(i)).unit_elements();
  }
  return offset;
}

void Blueprint::begin_chunk() {
  chunk_ = num_chunks_++;
}

void Blueprint::end_chunks() {
  chunk_ = BufferDecl::kNoChunk;
  end_unit();
}

void Blueprint::end_unit() {
  in_unit_ = false;
}

int Blueprint::begin_unit(std::string name, AxisSet replicated) {
  in_unit_ = true;
  unit_ = add_unit_beside(std::move(name), replicated);
  frozen_ = -1;
  return unit_;
}

int Blueprint::add_frozen_beside() {
  const UnitDecl& current = units_.at(static_cast<std::size_t>(unit_));
  frozen_ = add_unit_beside(current.name + ".frozen", current.replicated);
  return frozen_;
}

int Blueprint::add_unit_beside(std::string name, AxisSet replicated) {
  units_.push_back({.name = std::move(name), .params = {}, .replicated = replicated});
  return static_cast<int>(units_.size()) - 1;
}

ParamRef Blueprint::add_param(ParamDecl param) {
  check(unit_ >= 0, "parameter {} declared before any unit", param.name);
  const int unit = !param.trained && frozen_ >= 0 ? frozen_ : unit_;
  return add_param(unit, std::move(param));
}

ParamRef Blueprint::add_param(int unit, ParamDecl param) {
  UnitDecl& decl = units_.at(static_cast<std::size_t>(unit));
  check(decl.params.empty() || decl.trained == param.trained,
        "{} of unit {} is {}, unlike the unit's other parameters", param.name, decl.name,
        param.trained ? "trained" : "frozen");
  decl.trained = param.trained;
  decl.params.push_back(std::move(param));
  return {unit, static_cast<int>(decl.params.size()) - 1};
}

BufferRef Blueprint::add_buffer(BufferDecl buffer) {
  buffer.name.insert(0, prefix_);
  const auto [known, is_new] =
      buffers_by_name_.try_emplace(buffer.name, static_cast<int>(buffers_.size()));
  buffer.chunk = chunk_;
  buffer.units.clear();
  if (in_unit_) {
    buffer.units.push_back(unit_);
  }
  if (is_new) {
    check(chunk_ != BufferDecl::kNoChunk || buffer.lifetime != Lifetime::kSaved,
          "buffer {} is saved, and belongs to no chunk of the model", buffer.name);
    buffers_.push_back(std::move(buffer));
    return {known->second};
  }
  BufferDecl* const found = &buffers_[static_cast<std::size_t>(known->second)];
  check(found->lifetime == buffer.lifetime && buffer.lifetime != Lifetime::kSaved,
        "buffer {} declared twice; only scratch and constants are shared", buffer.name);
  const bool in_backward_only = found->in_backward_only && buffer.in_backward_only;
  std::vector<int> users = std::move(found->units);
  if (in_unit_ && (users.empty() || users.back() != buffer.units.front())) {
    users.push_back(buffer.units.front());
  }
  if (found->bytes() < buffer.bytes()) {
    *found = std::move(buffer);
  }
  found->units = std::move(users);
  found->in_backward_only = in_backward_only;
  return {known->second};
}

BufferRef Blueprint::add_backward_buffer(BufferDecl buffer) {
  buffer.in_backward_only = true;
  return add_buffer(std::move(buffer));
}

BufferRef Blueprint::add_untrained(std::string name, Shape shape, std::int64_t block) {
  const BufferRef buffer = add_buffer({name, shape, DType::kF32, Lifetime::kConstant});
  untrained_.push_back(
      {.name = std::move(name), .shape = shape, .block = block, .unit = unit_, .buffer = buffer});
  return buffer;
}

int Blueprint::add_scaled_tensor(ScaledTensorDecl tensor) {
  scaled_tensors_.push_back(std::move(tensor));
  return static_cast<int>(scaled_tensors_.size()) - 1;
}

Blueprint Blueprint::once_more(std::string prefix) const {
  Blueprint other;
  other.prefix_ = std::move(prefix);
  other.buffers_ = buffers_;
  return other;
}

void Blueprint::add_buffers_of(const Blueprint& other) {
  check(std::equal(units_.begin(), units_.end(), other.units_.begin(), other.units_.end(),
                   [](const UnitDecl& a, const UnitDecl& b) {
                     return a.name == b.name && a.numel() == b.numel();
                   }),
        "a model declared once more has other units");
  for (std::size_t i = buffers_.size(); i < other.buffers_.size(); ++i) {
    BufferDecl buffer = other.buffers_[i];
    buffer.chunk = BufferDecl::kNoChunk;
    buffer.units.clear();
    buffers_by_name_.emplace(buffer.name, static_cast<int>(i));
    buffers_.push_back(std::move(buffer));
  }
}

const ParamDecl& Blueprint::param(ParamRef ref) const {
  return units_.at(static_cast<std::size_t>(ref.unit))
      .params.at(static_cast<std::size_t>(ref.index));
}

std::int64_t Blueprint::num_parameters() const {
  std::int64_t total = 0;
  for (const UnitDecl& unit : units_) {
    for (const ParamDecl& param : unit.params) {
      total += param.local_shape().numel();
    }
  }
  return total;
}

std::int64_t Blueprint::num_trained() const {
  std::int64_t total = 0;
  for (const UnitDecl& unit : units_) {
    total += unit.trained ? unit.numel() : 0;
  }
  return total;
}

}  // namespace dstrain
