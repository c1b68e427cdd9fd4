#include "engine/plan/mesh.h"

#include "kernels/core/check.h"

namespace dstrain {
namespace {

// Axes from the slowest to the fastest.
constexpr std::array kDenseFolding{Axis::kPipeline,    Axis::kDataAcross,   Axis::kDataInside,
                                   Axis::kContextRing, Axis::kContextHeads, Axis::kTensor};
constexpr std::array kExpertFolding{Axis::kPipeline, Axis::kExpertData, Axis::kExpert,
                                    Axis::kExpertTensor};
constexpr std::array kAllInOrder{Axis::kPipeline,    Axis::kDataAcross,   Axis::kDataInside,
                                 Axis::kContextRing, Axis::kContextHeads, Axis::kTensor,
                                 Axis::kExpertData,  Axis::kExpert,       Axis::kExpertTensor};
constexpr AxisSet kOfExperts{Axis::kExpertData, Axis::kExpert, Axis::kExpertTensor};
constexpr AxisSet kOfTheRest = kGradientAxes | Axis::kTensor;

void check_one_folding(AxisSet axes) {
  check(!axes.meets(kOfExperts) || !axes.meets(kOfTheRest),
        "a set of axes mixes those of experts with the others'");
}

}  // namespace

Mesh::Mesh(const MeshDegrees& degrees) {
  const auto degree_of = [this](Axis axis) -> int& {
    return lines_[static_cast<std::size_t>(axis)].degree;
  };
  degree_of(Axis::kPipeline) = degrees.pipeline;
  degree_of(Axis::kDataAcross) = degrees.data_across;
  degree_of(Axis::kDataInside) = degrees.data_inside;
  degree_of(Axis::kContextRing) = degrees.context_ring;
  degree_of(Axis::kContextHeads) = degrees.context_heads;
  degree_of(Axis::kTensor) = degrees.tensor;
  degree_of(Axis::kExpert) = degrees.expert;
  degree_of(Axis::kExpertTensor) = degrees.expert_tensor;
  for (const Axis axis : kAllInOrder) {
    check(line(axis).degree >= 1, "degree {} of axis {} of a mesh", line(axis).degree,
          static_cast<int>(axis));
  }
  const int stage = degree(kOfTheRest);
  const int of_an_expert = degrees.expert * degrees.expert_tensor;
  check(stage % of_an_expert == 0, "{} ranks of a pipeline stage hold experts in groups of {}",
        stage, of_an_expert);
  degree_of(Axis::kExpertData) = stage / of_an_expert;

  const auto set_strides = [this](const auto& folding) {
    int stride = 1;
    for (auto axis = folding.rbegin(); axis != folding.rend(); ++axis) {
      Line& line = lines_[static_cast<std::size_t>(*axis)];
      line.stride = stride;
      stride *= line.degree;
    }
  };
  set_strides(kDenseFolding);
  set_strides(kExpertFolding);
}

int Mesh::degree(AxisSet axes) const {
  check_one_folding(axes);
  int degree = 1;
  for (const Axis axis : kAllInOrder) {
    degree *= axes.has(axis) ? line(axis).degree : 1;
  }
  return degree;
}

Coordinates Mesh::coordinates(int rank) const {
  check(rank >= 0 && rank < world_size(), "rank {} of {}", rank, world_size());
  Coordinates at;
  for (const Axis axis : kAllInOrder) {
    at[axis] = line(axis).coordinate(rank);
  }
  return at;
}

int Mesh::rank(const Coordinates& at) const {
  int rank = 0;
  for (const Axis axis : kDenseFolding) {
    rank += at[axis] * line(axis).stride;
  }
  return rank;
}

int Mesh::first(AxisSet axes, int rank) const {
  check_one_folding(axes);
  const Coordinates at = coordinates(rank);
  for (const Axis axis : kAllInOrder) {
    rank -= axes.has(axis) ? at[axis] * line(axis).stride : 0;
  }
  return rank;
}

int Mesh::index(AxisSet axes, int rank) const {
  check_one_folding(axes);
  const Coordinates at = coordinates(rank);
  int index = 0;
  for (const Axis axis : kAllInOrder) {
    index = axes.has(axis) ? index * line(axis).degree + at[axis] : index;
  }
  return index;
}

std::vector<int> Mesh::members(AxisSet axes, int rank) const {
  std::vector<int> members{first(axes, rank)};
  for (const Axis axis : kAllInOrder) {
    if (!axes.has(axis)) {
      continue;
    }
    std::vector<int> further;
    for (const int member : members) {
      for (int i = 0; i < line(axis).degree; ++i) {
        further.push_back(member + i * line(axis).stride);
      }
    }
    members = std::move(further);
  }
  return members;
}

}  // namespace dstrain
