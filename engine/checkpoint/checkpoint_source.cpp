#include "engine/checkpoint/checkpoint_source.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "engine/checkpoint/checkpoint_error.h"
#include "engine/checkpoint/placed_tensor.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

/// The dtype that holds the values of pieces of several dtypes.
DType dtype_of(const std::vector<StoredPiece>& pieces) {
  const bool narrow = std::all_of(pieces.begin(), pieces.end(), [](const StoredPiece& piece) {
    return piece.dtype == DType::kBF16;
  });
  return narrow ? DType::kBF16 : DType::kF32;
}

}  // namespace

CheckpointSource::CheckpointSource(std::filesystem::path checkpoint)
    : folder_(std::move(checkpoint)),
      manifest_(read_manifest(folder_)),
      pieces_(manifest_, folder_) {
  if (const auto fault = fault_of_files(manifest_, folder_)) {
    throw CheckpointError(*fault);
  }
  if (const auto fault = fault_of_cover(manifest_)) {
    throw CheckpointError(fmt::format("{}: {}", folder_.string(), *fault));
  }
  for (const auto& [name, tensor] : manifest_.tensors) {
    for (const auto& [state, pieces] : tensor.states) {
      entries_.push_back(
          {.tensor = name, .state = state, .shape = tensor.shape, .dtype = dtype_of(pieces)});
    }
  }
}

void CheckpointSource::read(const std::string& state, const Piece& piece, Tensor out) const {
  const auto tensor = manifest_.tensors.find(piece.tensor);
  const bool has_tensor = tensor != manifest_.tensors.end();
  if (!has_tensor || !tensor->second.states.contains(state)) {
    throw CheckpointError(
        fmt::format("{} holds no {} of \"{}\"", folder_.string(), state, piece.tensor));
  }
  if (tensor->second.shape != piece.shape) {
    throw CheckpointError(fmt::format("{}: \"{}\" has shape {}, expected {}", folder_.string(),
                                      piece.tensor, tensor->second.shape.to_string(),
                                      piece.shape.to_string()));
  }
  check(out.numel() == piece.flat.size(), "\"{}\": {} elements cannot take a piece of {}",
        piece.tensor, out.numel(), piece.flat.size());
  auto* to = static_cast<std::byte*>(out.data());
  for (const StoredPiece& stored : tensor->second.states.at(state)) {
    std::span<const std::byte> bytes;
    for_each_overlap(
        stored.range, {piece.box_start, piece.box_extent, piece.flat}, [&](const OverlapRun& run) {
          if (bytes.empty()) {
            bytes = verified(stored);
          }
          convert_elements(bytes.data() + run.stored * size_of(stored.dtype), stored.dtype,
                           to + run.wanted * size_of(out.dtype()), out.dtype(), run.count);
        });
    if (!bytes.empty()) {
      pieces_.file_of(stored).release(pieces_.entry_of(stored));
    }
  }
}

std::span<const std::byte> CheckpointSource::verified(const StoredPiece& piece) const {
  if (!verified_.contains(&piece)) {
    pieces_.read(piece, [](Range, const std::byte*) {});
    verified_.insert(&piece);
  }
  return pieces_.file_of(piece).data(pieces_.entry_of(piece));
}

}  // namespace dstrain
