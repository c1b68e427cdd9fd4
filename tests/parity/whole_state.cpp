#include "tests/parity/whole_state.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#include <fmt/format.h>

namespace dstrain::test {
namespace {

bool same_bits(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

/// Index in the whole tensor, row by row, of element `flat` of the piece's box.
std::int64_t whole_index(const Piece& piece, std::int64_t flat) {
  std::int64_t index = 0;
  std::int64_t stride = 1;
  for (int dim = piece.shape.rank() - 1; dim >= 0; --dim) {
    index += (piece.box_start[dim] + flat % piece.box_extent[dim]) * stride;
    flat /= piece.box_extent[dim];
    stride *= piece.shape[dim];
  }
  return index;
}

}  // namespace

WholeState whole_state(const std::vector<std::vector<HeldPiece>>& ranks,
                       std::vector<std::string>& faults) {
  WholeState whole;
  std::map<std::string, std::vector<bool>> known;
  std::map<std::string, std::int64_t> differ;
  for (const std::vector<HeldPiece>& rank : ranks) {
    for (const HeldPiece& part : rank) {
      const std::string name = part.state + " of " + part.piece.tensor;
      std::vector<float>& values = whole[name];
      std::vector<bool>& is_known = known[name];
      values.resize(static_cast<std::size_t>(part.piece.shape.numel()));
      is_known.resize(values.size());
      for (std::size_t i = 0; i < part.values.size(); ++i) {
        const auto at = static_cast<std::size_t>(
            whole_index(part.piece, part.piece.flat.begin + static_cast<std::int64_t>(i)));
        differ[name] += is_known[at] && !same_bits(values[at], part.values[i]) ? 1 : 0;
        values[at] = part.values[i];
        is_known[at] = true;
      }
    }
  }
  for (const auto& [name, bits] : known) {
    const auto missing = std::count(bits.begin(), bits.end(), false);
    if (missing > 0) faults.push_back(fmt::format("{}: nobody holds {} elements", name, missing));
    if (differ[name] > 0) {
      faults.push_back(fmt::format("{}: copies differ in {} elements", name, differ[name]));
    }
  }
  return whole;
}

std::vector<std::string> differences(const WholeState& a, const WholeState& b) {
  std::vector<std::string> names;
  for (const auto& [name, values] : a) {
    const auto other = b.find(name);
    const bool same = other != b.end() && values.size() == other->second.size() &&
                      std::equal(values.begin(), values.end(), other->second.begin(), same_bits);
    if (!same) names.push_back(name);
  }
  for (const auto& [name, values] : b) {
    if (!a.contains(name)) names.push_back(name);
  }
  return names;
}

}  // namespace dstrain::test
