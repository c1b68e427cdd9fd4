#include "engine/plan/shard_map.h"

#include <algorithm>

#include "kernels/core/check.h"

namespace dstrain {

ShardMap::ShardMap(const Blueprint& blueprint, const Mesh& mesh, int rank, AxisSet cut)
    : units_(blueprint.units()) {
  for (const UnitDecl& unit : units_) {
    const AxisSet sliced = unit.replicated & cut;
    const AxisSet copied = unit.replicated.without(cut);
    cuts_.push_back({.slices = mesh.degree(sliced),
                     .own = mesh.index(sliced, rank),
                     .copies = mesh.degree(copied),
                     .copy = mesh.index(copied, rank)});
  }
}

bool ShardMap::has_replicas() const {
  return std::any_of(cuts_.begin(), cuts_.end(),
                     [](const Cut& cut) { return cut.slices > 1 || cut.copies > 1; });
}

bool ShardMap::has_copies() const {
  return std::any_of(cuts_.begin(), cuts_.end(), [](const Cut& cut) { return cut.copies > 1; });
}

std::int64_t ShardMap::numel(int unit) const {
  return this->unit(unit).numel();
}

std::int64_t ShardMap::slice_numel(int unit) const {
  const std::int64_t share = (numel(unit) + num_slices(unit) - 1) / num_slices(unit);
  return (share + kAlignment - 1) / kAlignment * kAlignment;
}

std::int64_t ShardMap::padded_numel(int unit) const {
  return slice_numel(unit) * num_slices(unit);
}

Range ShardMap::slice(int unit, int slice) const {
  check(slice >= 0 && slice < num_slices(unit), "slice {} of {}", slice, num_slices(unit));
  const std::int64_t length = slice_numel(unit);
  return {slice * length, (slice + 1) * length};
}

Range ShardMap::saved_slice(int unit) const {
  const Range own = own_slice(unit);
  const auto [slices, mine, copies, copy] = cut(unit);
  return {own.begin + own.size() * copy / copies, own.begin + own.size() * (copy + 1) / copies};
}

std::vector<PlacedPiece> ShardMap::pieces(int unit, Range range) const {
  std::vector<PlacedPiece> pieces;
  std::int64_t offset = 0;
  const std::vector<ParamDecl>& params = this->unit(unit).params;
  for (std::size_t index = 0; index < params.size(); ++index) {
    const ParamDecl& param = params[index];
    // Padding lies after the box, which is cut in rows.
    const std::int64_t numel = param.box_extent().numel();
    const std::int64_t begin = std::max(range.begin, offset);
    const std::int64_t end = std::min(range.end, offset + numel);
    if (begin < end && !param.code) {
      pieces.push_back({.piece = {.tensor = param.name,
                                  .shape = param.shape,
                                  .box_start = param.box_start(),
                                  .box_extent = param.box_extent(),
                                  .flat = {begin - offset, end - offset}},
                        .unit = unit,
                        .offset = begin,
                        .param = static_cast<int>(index)});
    }
    offset += param.unit_elements();
  }
  return pieces;
}

}  // namespace dstrain
