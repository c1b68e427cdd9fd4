// ShardMap: how the flat buffer of every unit is padded and cut into slices, one for each rank that
// has the unit, or for each of a group of them, and the pieces of named tensors that a range of it
// holds. ZeRO stages, the optimizer and checkpoints all use the same slices; any size works, the
// remainder is padding at the end.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/plan/blueprint.h"
#include "engine/plan/mesh.h"

namespace dstrain {

/// Elements [begin, end).
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  [[nodiscard]] std::int64_t size() const { return end - begin; }
  friend bool operator==(const Range&, const Range&) = default;
};

/// A contiguous part of one named tensor: elements `flat` of the row-major order of the box
/// (start, extent) of the whole tensor. Without tensor parallelism the box is the whole tensor.
struct Piece {
  std::string tensor;
  Shape shape;  ///< of the whole tensor
  Shape box_start;
  Shape box_extent;
  Range flat;  ///< within the box
};

/// A piece and its place in its unit's flat buffer.
struct PlacedPiece {
  Piece piece;
  int unit = 0;
  std::int64_t offset = 0;  ///< of the piece's first element in the unit
  int param = 0;            ///< index of its declaration within the unit
};

class ShardMap {
 public:
  /// Slices are multiples of this many elements (64 bytes of f32), so that every slice starts on a
  /// cache line.
  static constexpr std::int64_t kAlignment = 16;

  /// Makes the map of rank `rank` of the mesh: a unit has as many slices as there are ranks along
  /// those of `cut` that it is replicated over (UnitDecl::replicated). Ranks that differ along the
  /// others have the same slice.
  explicit ShardMap(const Blueprint& blueprint,
                    const Mesh& mesh = Mesh({}),
                    int rank = 0,
                    AxisSet cut = kEveryReplica);

  [[nodiscard]] int num_units() const { return static_cast<int>(units_.size()); }
  [[nodiscard]] const UnitDecl& unit(int unit) const {
    return units_.at(static_cast<std::size_t>(unit));
  }
  [[nodiscard]] int num_slices(int unit) const { return cut(unit).slices; }
  /// The number of ranks that have the same slice of a unit.
  [[nodiscard]] int num_copies(int unit) const { return cut(unit).copies; }
  /// True if several ranks have the same unit.
  [[nodiscard]] bool has_replicas() const;
  /// True if several ranks have the same slice.
  [[nodiscard]] bool has_copies() const;
  /// Elements of a unit without and with padding; padded is num_slices × slice.
  [[nodiscard]] std::int64_t numel(int unit) const;
  [[nodiscard]] std::int64_t padded_numel(int unit) const;
  [[nodiscard]] std::int64_t slice_numel(int unit) const;
  /// Slice r of a unit, padding included.
  [[nodiscard]] Range slice(int unit, int slice) const;
  /// The slice that belongs to this rank.
  [[nodiscard]] Range own_slice(int unit) const { return slice(unit, cut(unit).own); }
  /// The part of it that this rank saves: ranks that have the same slice share the work.
  [[nodiscard]] Range saved_slice(int unit) const;
  /// The parts of named tensors that `range` of a unit holds, in order; neither padding nor what is
  /// coded (ParamDecl::code) belongs to any.
  [[nodiscard]] std::vector<PlacedPiece> pieces(int unit, Range range) const;

 private:
  struct Cut {
    int slices = 1;
    int own = 0;  // this rank's
    int copies = 1;
    int copy = 0;  // this rank's place among those that have its slice
  };
  [[nodiscard]] const Cut& cut(int unit) const { return cuts_.at(static_cast<std::size_t>(unit)); }

  std::vector<UnitDecl> units_;
  std::vector<Cut> cuts_;  // by unit
};

}  // namespace dstrain
