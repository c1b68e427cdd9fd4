// ShardMap: how the flat buffer of every unit is padded and cut into data-parallel slices, and the
// pieces of named tensors that a range of it holds. ZeRO stages, the optimizer and checkpoints all
// speak of the same slices; any size works, the remainder is padding at the end.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/plan/blueprint.h"

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

/// A piece and where it lies in its unit's flat buffer.
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

  ShardMap(const Blueprint& blueprint, int num_slices);

  [[nodiscard]] int num_slices() const { return num_slices_; }
  [[nodiscard]] int num_units() const { return static_cast<int>(units_.size()); }
  [[nodiscard]] const UnitDecl& unit(int unit) const {
    return units_.at(static_cast<std::size_t>(unit));
  }
  /// Elements of a unit without and with padding; padded is num_slices × slice.
  [[nodiscard]] std::int64_t numel(int unit) const;
  [[nodiscard]] std::int64_t padded_numel(int unit) const;
  [[nodiscard]] std::int64_t slice_numel(int unit) const;
  /// Slice r of a unit, padding included.
  [[nodiscard]] Range slice(int unit, int slice) const;
  /// The parts of named tensors that `range` of a unit holds, in order; padding belongs to none.
  [[nodiscard]] std::vector<PlacedPiece> pieces(int unit, Range range) const;

 private:
  std::vector<UnitDecl> units_;
  int num_slices_;
};

}  // namespace dstrain
