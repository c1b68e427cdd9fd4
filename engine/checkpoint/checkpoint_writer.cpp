#include "engine/checkpoint/checkpoint_writer.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "engine/base/checksum.h"
#include "engine/checkpoint/foreign_tensor.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/config/arch/tensor_list.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

/// A range of one state of one tensor.
struct SharePiece {
  ModelTensor tensor;
  std::string state;
  Range flat;
  DType dtype = DType::kF32;
  std::string key;
};

DType stored_dtype(const TensorSource::Entry& entry, const CheckpointShare& share) {
  if (entry.state == "parameter" && share.dtype && !is_balancing_bias(entry.tensor)) {
    return *share.dtype;
  }
  return entry.dtype == DType::kF16 ? DType::kF32 : entry.dtype;
}

/// Returns wide dtypes first, and leaves out pieces without elements.
std::vector<SharePiece> pieces_of(const TensorSource& source, const CheckpointShare& share) {
  std::vector<SharePiece> pieces;
  for (const TensorSource::Entry& entry : source.entries()) {
    const std::int64_t numel = entry.shape.numel();
    const Range flat{numel * share.rank / share.ranks, numel * (share.rank + 1) / share.ranks};
    if (flat.size() > 0) {
      pieces.push_back(
          {.tensor = {entry.tensor, entry.shape},
           .state = entry.state,
           .flat = flat,
           .dtype = stored_dtype(entry, share),
           .key = fmt::format("{}/{}[{}:{}]", entry.state, entry.tensor, flat.begin, flat.end)});
    }
  }
  std::stable_sort(pieces.begin(), pieces.end(), [](const SharePiece& a, const SharePiece& b) {
    return size_of(a.dtype) > size_of(b.dtype);
  });
  return pieces;
}

}  // namespace

std::string share_name(int rank) {
  return fmt::format("rank-{:05}.safetensors", rank);
}

std::int64_t share_bytes(const TensorSource& source, const CheckpointShare& share) {
  std::int64_t bytes = 0;
  for (const SharePiece& piece : pieces_of(source, share)) {
    bytes += piece.flat.size() * size_of(piece.dtype);
  }
  return bytes;
}

WrittenFile write_checkpoint_share(const DurableFiles& files,
                                   const std::filesystem::path& path,
                                   const TensorSource& source,
                                   const CheckpointShare& share,
                                   const ByteProgress& progress) {
  const std::vector<SharePiece> pieces = pieces_of(source, share);
  std::vector<SafetensorsDecl> declarations;
  for (const SharePiece& piece : pieces) {
    declarations.push_back({piece.key, std::string(stored_name(piece.dtype)), {piece.flat.size()}});
  }
  SafetensorsWriter writer(files, path, declarations, {{"format", "dstrain"}});
  ByteTally tally(progress);
  tally.add(std::as_bytes(std::span(writer.header())));
  std::vector<std::byte> buffer;
  for (const SharePiece& piece : pieces) {
    for (std::int64_t begin = piece.flat.begin; begin < piece.flat.end; begin += kChunkElements) {
      const std::int64_t count = std::min(kChunkElements, piece.flat.end - begin);
      buffer.resize(static_cast<std::size_t>(count * size_of(piece.dtype)));
      source.read(piece.state, piece_of(piece.tensor, {begin, begin + count}),
                  {buffer.data(), piece.dtype, Shape{count}});
      writer.write_part(buffer);
      tally.add(buffer);
    }
  }
  writer.finish();
  return tally.of(path);
}

Manifest manifest_of_share(const std::filesystem::path& path,
                           const TensorSource& source,
                           const CheckpointShare& share,
                           const TrainingState& training) {
  constexpr std::size_t kStep = std::size_t{32} << 20;
  const SafetensorsFile file(path);
  std::int64_t data_bytes = 0;
  Manifest manifest{.training = training, .files = {}, .tensors = {}};
  for (const SharePiece& piece : pieces_of(source, share)) {
    const auto entry = file.tensors().find(piece.key);
    check(entry != file.tensors().end(), "{} lacks {}", path.string(), piece.key);
    const auto bytes = file.data(entry->second);
    RunningChecksum sum;
    for (std::size_t at = 0; at < bytes.size(); at += kStep) {
      sum.add(bytes.subspan(at, std::min(kStep, bytes.size() - at)));
      file.release(entry->second);
    }
    data_bytes += static_cast<std::int64_t>(bytes.size());
    StoredTensor& tensor =
        manifest.tensors.try_emplace(piece.tensor.name, StoredTensor{piece.tensor.shape, {}})
            .first->second;
    const Piece whole = piece_of(piece.tensor, piece.flat);
    tensor.states[piece.state].push_back({.file = 0,
                                          .key = piece.key,
                                          .range = {whole.box_start, whole.box_extent, whole.flat},
                                          .dtype = piece.dtype,
                                          .checksum = sum.value()});
  }
  manifest.files.push_back({.name = share_name(share.rank),
                            .bytes = static_cast<std::int64_t>(file.header().size()) + data_bytes,
                            .header_checksum = checksum(file.header())});
  return manifest;
}

}  // namespace dstrain
