// Checks that each element of each tensor is stored exactly once: within a box the flat ranges must
// follow each other without gap, and the boxes must be disjoint and together as large as the
// tensor.
#include <algorithm>
#include <array>
#include <vector>

#include <fmt/format.h>

#include "engine/checkpoint/manifest.h"

namespace dstrain {
namespace {

using BoxKey =
    std::pair<std::array<std::int64_t, Shape::kMaxRank>, std::array<std::int64_t, Shape::kMaxRank>>;

BoxKey key_of(const BoxedRange& range) {
  BoxKey key{};
  for (int dim = 0; dim < range.start.rank(); ++dim) {
    key.first[static_cast<std::size_t>(dim)] = range.start[dim];
    key.second[static_cast<std::size_t>(dim)] = range.extent[dim];
  }
  return key;
}

std::string box_text(const BoxedRange& range) {
  return fmt::format("box {} + {}", range.start.to_string(), range.extent.to_string());
}

bool overlap(const BoxedRange& a, const BoxedRange& b) {
  for (int dim = 0; dim < a.start.rank(); ++dim) {
    if (a.start[dim] >= b.start[dim] + b.extent[dim] ||
        b.start[dim] >= a.start[dim] + a.extent[dim]) {
      return false;
    }
  }
  return true;
}

/// `pieces` are all of one box.
std::optional<std::string> fault_in_box(std::vector<const StoredPiece*>& pieces) {
  std::sort(pieces.begin(), pieces.end(), [](const StoredPiece* a, const StoredPiece* b) {
    return a->range.flat.begin < b->range.flat.begin;
  });
  const BoxedRange& box = pieces.front()->range;
  std::int64_t end = 0;
  for (const StoredPiece* piece : pieces) {
    const Range& flat = piece->range.flat;
    if (flat.begin < end) {
      return fmt::format("elements [{}, {}) of {} are stored twice", flat.begin,
                         std::min(end, flat.end), box_text(box));
    }
    if (flat.begin > end) {
      return fmt::format("elements [{}, {}) of {} are in no file", end, flat.begin, box_text(box));
    }
    end = flat.end;
  }
  if (end != box.extent.numel()) {
    return fmt::format("elements [{}, {}) of {} are in no file", end, box.extent.numel(),
                       box_text(box));
  }
  return std::nullopt;
}

std::optional<std::string> fault_of_pieces(const Shape& shape,
                                           const std::vector<StoredPiece>& pieces) {
  std::map<BoxKey, std::vector<const StoredPiece*>> boxes;
  for (const StoredPiece& piece : pieces) {
    boxes[key_of(piece.range)].push_back(&piece);
  }
  std::int64_t numel = 0;
  for (auto a = boxes.begin(); a != boxes.end(); ++a) {
    const BoxedRange& box = a->second.front()->range;
    for (auto b = std::next(a); b != boxes.end(); ++b) {
      if (overlap(box, b->second.front()->range)) {
        return fmt::format("{} and {} overlap", box_text(box), box_text(b->second.front()->range));
      }
    }
    if (auto fault = fault_in_box(a->second)) {
      return fault;
    }
    numel += box.extent.numel();
  }
  if (numel != shape.numel()) {
    return fmt::format("its boxes hold {} of {} elements", numel, shape.numel());
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> fault_of_cover(const Manifest& manifest) {
  for (const auto& [name, tensor] : manifest.tensors) {
    for (const auto& [state, pieces] : tensor.states) {
      if (auto fault = fault_of_pieces(tensor.shape, pieces)) {
        return fmt::format("{} of \"{}\", shape {}: {}", state, name, tensor.shape.to_string(),
                           *fault);
      }
    }
  }
  return std::nullopt;
}

}  // namespace dstrain
