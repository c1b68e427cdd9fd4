// Mesh: the place of a rank among the axes along which a run is divided, and the ranks with which
// it shares each of them. The same arithmetic on every rank; no sockets. An axis that divides
// nothing has degree 1.
//
// The ranks of a pipeline stage are folded in two ways. Attention and all that every token passes
// through divide them by data, context and tensor; experts divide the same ranks once more, by
// expert data, expert and expert tensor. The slowest axis comes first in both:
//   rank = ((((pipeline · across + data across) · inside + data inside) · ring + context ring) ·
//          heads + context heads) · tp + tensor rank
//        = ((pipeline · edp + expert data) · ep + expert) · etp + expert tensor
// Tensor is the fastest, so that a tensor-parallel group stays inside a host; after it come the
// ranks that exchange heads, the ring that passes keys on, then the part of data that is inside a
// host.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <vector>

namespace dstrain {

enum class Axis : std::uint8_t {
  kPipeline,      ///< other layers; shared by both foldings
  kDataAcross,    ///< other samples, in another host
  kDataInside,    ///< other samples, in the same host
  kContextRing,   ///< other tokens of the same samples, whose keys and values come by
  kContextHeads,  ///< other tokens of the same samples; while they attend, other heads
  kTensor,        ///< other parts of the same layers
  kExpertData,    ///< other tokens for the same experts
  kExpert,        ///< other experts
  kExpertTensor,  ///< other parts of the same experts
};
inline constexpr int kNumAxes = 9;

/// A set of axes. An axis alone is one.
class AxisSet {
 public:
  constexpr AxisSet() = default;
  constexpr AxisSet(Axis axis) : bits_(bit(axis)) {}  // NOLINT(google-explicit-constructor)
  constexpr AxisSet(std::initializer_list<Axis> axes) {
    for (const Axis axis : axes) {
      bits_ |= bit(axis);
    }
  }

  [[nodiscard]] constexpr bool has(Axis axis) const { return (bits_ & bit(axis)) != 0; }
  /// True if both have an axis.
  [[nodiscard]] constexpr bool meets(AxisSet other) const { return (bits_ & other.bits_) != 0; }
  friend constexpr AxisSet operator|(AxisSet a, AxisSet b) {
    a.bits_ |= b.bits_;
    return a;
  }
  friend constexpr AxisSet operator&(AxisSet a, AxisSet b) {
    a.bits_ &= b.bits_;
    return a;
  }
  /// Those that `other` does not have.
  [[nodiscard]] constexpr AxisSet without(AxisSet other) const {
    AxisSet rest = *this;
    rest.bits_ &= ~other.bits_;
    return rest;
  }
  friend constexpr bool operator==(AxisSet a, AxisSet b) = default;

 private:
  static constexpr unsigned bit(Axis axis) { return 1U << static_cast<unsigned>(axis); }
  unsigned bits_ = 0;
};

/// The axes along which ranks train on other samples.
inline constexpr AxisSet kDataAxes{Axis::kDataAcross, Axis::kDataInside};
/// The axes along which ranks have other tokens of the same samples.
inline constexpr AxisSet kContextAxes{Axis::kContextRing, Axis::kContextHeads};
/// The axes along which ranks compute gradients of the same parameters from other tokens: a
/// gradient is the sum over them, and ZeRO divides states among them.
inline constexpr AxisSet kGradientAxes = kDataAxes | kContextAxes;
/// Those of them along which neighbours share a unit, where not all of them do
/// (Placement, mics_shard_size).
inline constexpr AxisSet kNeighbourAxes = AxisSet{Axis::kDataInside} | kContextAxes;
/// The axes along which ranks hold other parts of the model.
inline constexpr AxisSet kModelAxes{Axis::kPipeline, Axis::kTensor};
/// All axes along which ranks may have the same unit.
inline constexpr AxisSet kEveryReplica = kGradientAxes | Axis::kExpertData;
inline constexpr AxisSet kAllAxes = kGradientAxes | kModelAxes;

/// The number of ranks along each axis, all ≥ 1. Expert data is what the other two leave of a
/// pipeline stage.
struct MeshDegrees {
  int pipeline = 1;
  int data_across = 1;
  int data_inside = 1;
  int context_ring = 1;
  int context_heads = 1;
  int tensor = 1;
  int expert = 1;
  int expert_tensor = 1;
};

/// The coordinates of one rank, by axis.
class Coordinates {
 public:
  [[nodiscard]] int operator[](Axis axis) const { return at_.at(static_cast<std::size_t>(axis)); }
  int& operator[](Axis axis) { return at_.at(static_cast<std::size_t>(axis)); }
  friend bool operator==(const Coordinates&, const Coordinates&) = default;

 private:
  std::array<int, kNumAxes> at_{};
};

/// Sets of axes that mix the two foldings are an InternalError: no group lies along both.
class Mesh {
 public:
  /// expert · expert_tensor must divide the ranks of a pipeline stage.
  explicit Mesh(const MeshDegrees& degrees);

  [[nodiscard]] int world_size() const { return degree(kAllAxes); }
  /// The size of a group along these axes.
  [[nodiscard]] int degree(AxisSet axes) const;
  /// Whether ranks that have the same experts are others than those that have the same part of the
  /// rest.
  [[nodiscard]] bool experts_are_apart() const {
    return degree(Axis::kExpert) > 1 || degree(Axis::kExpertTensor) != degree(Axis::kTensor);
  }
  [[nodiscard]] Coordinates coordinates(int rank) const;
  /// The rank at these coordinates; those of experts are ignored, as the others determine the rank.
  [[nodiscard]] int rank(const Coordinates& at) const;
  /// The world ranks that differ from `rank` along `axes` and nowhere else, itself among them,
  /// ascending.
  [[nodiscard]] std::vector<int> members(AxisSet axes, int rank) const;
  /// The first of members(axes, rank), and the index of `rank` among them.
  [[nodiscard]] int first(AxisSet axes, int rank) const;
  [[nodiscard]] int index(AxisSet axes, int rank) const;

 private:
  struct Line {
    int degree = 1;
    int stride = 1;  ///< between the ranks of two neighbours
    [[nodiscard]] int coordinate(int rank) const { return rank / stride % degree; }
  };
  [[nodiscard]] const Line& line(Axis axis) const { return lines_[static_cast<std::size_t>(axis)]; }

  std::array<Line, kNumAxes> lines_;
};

}  // namespace dstrain
