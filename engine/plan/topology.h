// Topology: where a rank stands in the mesh of (pipeline, data, tensor) axes, and who its group
// members are. Tensor is the fastest axis, so that a tensor-parallel group stays inside a host:
// rank = (pipeline · dp + data) · tp + tensor. The same arithmetic on every rank; no sockets.
#pragma once

#include <cstdint>
#include <vector>

namespace dstrain {

enum class Axis : std::uint8_t { kPipeline, kData, kTensor };

struct Coordinates {
  int pipeline = 0;
  int data = 0;
  int tensor = 0;
  friend bool operator==(const Coordinates&, const Coordinates&) = default;
};

class Topology {
 public:
  /// Degrees ≥ 1.
  Topology(int pipeline, int data, int tensor);

  [[nodiscard]] int world_size() const { return pipeline_ * data_ * tensor_; }
  [[nodiscard]] int degree(Axis axis) const;
  [[nodiscard]] Coordinates coordinates(int rank) const;
  [[nodiscard]] int rank(const Coordinates& at) const;
  /// World ranks of the group along `axis` that `rank` belongs to, ascending.
  [[nodiscard]] std::vector<int> members(Axis axis, int rank) const;

 private:
  int pipeline_;
  int data_;
  int tensor_;
};

}  // namespace dstrain
