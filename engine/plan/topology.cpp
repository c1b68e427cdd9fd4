#include "engine/plan/topology.h"

#include "kernels/core/check.h"

namespace dstrain {

Topology::Topology(int pipeline, int data, int tensor)
    : pipeline_(pipeline), data_(data), tensor_(tensor) {
  check(pipeline >= 1 && data >= 1 && tensor >= 1, "degrees must be ≥ 1: {} × {} × {}", pipeline,
        data, tensor);
}

int Topology::degree(Axis axis) const {
  switch (axis) {
    case Axis::kPipeline:
      return pipeline_;
    case Axis::kData:
      return data_;
    case Axis::kTensor:
      return tensor_;
  }
  return 1;
}

Coordinates Topology::coordinates(int rank) const {
  check(rank >= 0 && rank < world_size(), "rank {} of {}", rank, world_size());
  return {.pipeline = rank / (data_ * tensor_),
          .data = rank / tensor_ % data_,
          .tensor = rank % tensor_};
}

int Topology::rank(const Coordinates& at) const {
  return (at.pipeline * data_ + at.data) * tensor_ + at.tensor;
}

std::vector<int> Topology::members(Axis axis, int rank) const {
  Coordinates at = coordinates(rank);
  std::vector<int> members;
  for (int i = 0; i < degree(axis); ++i) {
    switch (axis) {
      case Axis::kPipeline:
        at.pipeline = i;
        break;
      case Axis::kData:
        at.data = i;
        break;
      case Axis::kTensor:
        at.tensor = i;
        break;
    }
    members.push_back(this->rank(at));
  }
  return members;
}

}  // namespace dstrain
