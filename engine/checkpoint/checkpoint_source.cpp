#include "engine/checkpoint/checkpoint_source.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "engine/checkpoint/checkpoint_error.h"
#include "engine/checkpoint/checksum.h"
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
      files_(manifest_.files.size()) {
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
    throw CheckpointError(fmt::format("{}: \"{}\" has shape {}, {} is wanted", folder_.string(),
                                      piece.tensor, tensor->second.shape.to_string(),
                                      piece.shape.to_string()));
  }
  check(out.numel() == piece.flat.size(), "\"{}\": {} elements cannot take a piece of {}",
        piece.tensor, out.numel(), piece.flat.size());
  auto* to = static_cast<std::byte*>(out.data());
  for (const StoredPiece& stored : tensor->second.states.at(state)) {
    const SafetensorsFile* file = nullptr;
    const SafetensorsEntry* entry = nullptr;
    for_each_overlap(
        stored.range, {piece.box_start, piece.box_extent, piece.flat}, [&](const OverlapRun& run) {
          if (file == nullptr) {
            entry = &verified(stored);
            file = files_[stored.file].get();
          }
          convert_elements(file->data(*entry).data() + run.stored * size_of(stored.dtype),
                           stored.dtype, to + run.wanted * size_of(out.dtype()), out.dtype(),
                           run.count);
        });
    if (file != nullptr) {
      file->release(*entry);
    }
  }
}

const SafetensorsFile& CheckpointSource::open(std::size_t index) const {
  std::unique_ptr<SafetensorsFile>& file = files_[index];
  if (!file) {
    auto opened = std::make_unique<SafetensorsFile>(folder_ / manifest_.files[index].name);
    if (checksum(opened->header()) != manifest_.files[index].header_checksum) {
      throw CheckpointError(fmt::format(
          "{}: its header is damaged: it does not have the checksum that the manifest says",
          opened->path().string()));
    }
    file = std::move(opened);
  }
  return *file;
}

const SafetensorsEntry& CheckpointSource::verified(const StoredPiece& piece) const {
  constexpr std::size_t kStep = std::size_t{32} << 20;
  const SafetensorsFile& file = open(piece.file);
  const auto entry = file.tensors().find(piece.key);
  const std::vector<std::int64_t> shape{piece.range.flat.size()};
  if (entry == file.tensors().end() || entry->second.dtype != stored_name(piece.dtype) ||
      entry->second.shape != shape) {
    throw CheckpointError(fmt::format("{}: \"{}\" is not there as {} elements of {}",
                                      file.path().string(), piece.key, shape[0],
                                      stored_name(piece.dtype)));
  }
  if (verified_.contains(&piece)) {
    return entry->second;
  }
  const auto bytes = file.data(entry->second);
  RunningChecksum found;
  for (std::size_t at = 0; at < bytes.size(); at += kStep) {
    found.add(bytes.subspan(at, std::min(kStep, bytes.size() - at)));
    file.release(entry->second);
  }
  if (found.value() != piece.checksum) {
    throw CheckpointError(
        fmt::format("{}: \"{}\" is damaged: its {} bytes have checksum {}, the manifest says {}",
                    file.path().string(), piece.key, bytes.size(), checksum_text(found.value()),
                    checksum_text(piece.checksum)));
  }
  verified_.insert(&piece);
  return entry->second;
}

}  // namespace dstrain
