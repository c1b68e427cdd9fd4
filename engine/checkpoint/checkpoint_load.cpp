// Loading first checks all that can be known without reading the data (names, shapes, sizes,
// headers). Then each stored piece that is wanted is read once, in the order in which it lies on
// the disk, verified, and copied to every tensor that wants a part of it. Verifying everything
// before anything is copied would read twice what does not fit into the system's cache.
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "engine/base/checksum.h"
#include "engine/base/regular_file.h"
#include "engine/checkpoint/checkpoint_store.h"
#include "engine/checkpoint/manifest.h"
#include "engine/checkpoint/piece_reader.h"
#include "engine/checkpoint/placed_tensor.h"
#include "engine/checkpoint/step_folders.h"
#include "engine/config/did_you_mean.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

/// Part of a stored piece that goes into part of a wanted one.
struct Copy {
  const StoredPiece* from;
  const CheckpointTensor* to;
};

template <typename Map>
std::string nearest_names(const Map& map, const std::string& wanted) {
  constexpr std::size_t kShown = 3;
  std::vector<std::pair<std::size_t, std::string>> ranked;
  for (const auto& [name, value] : map) {
    ranked.emplace_back(edit_distance(wanted, name), name);
  }
  const std::size_t shown = std::min(kShown, ranked.size());
  std::partial_sort(ranked.begin(), ranked.begin() + static_cast<std::ptrdiff_t>(shown),
                    ranked.end());
  std::string text;
  for (std::size_t i = 0; i < shown; ++i) {
    text += fmt::format("{}\"{}\"", i == 0 ? "" : ", ", ranked[i].second);
  }
  return text.empty() ? "nothing" : text;
}

/// The stored pieces of the wanted tensor and state.
const std::vector<StoredPiece>& find_pieces(const Manifest& manifest,
                                            const fs::path& checkpoint,
                                            const CheckpointTensor& wanted) {
  const std::string& name = wanted.piece.tensor;
  const auto tensor = manifest.tensors.find(name);
  if (tensor == manifest.tensors.end()) {
    throw CheckpointError(fmt::format("{} has no tensor \"{}\"; the nearest names in it: {}",
                                      checkpoint.string(), name,
                                      nearest_names(manifest.tensors, name)));
  }
  const Shape& shape = tensor->second.shape;
  if (shape != wanted.piece.shape) {
    throw CheckpointError(fmt::format("{}: tensor \"{}\" has shape {}, this run's has {}",
                                      checkpoint.string(), name, shape.to_string(),
                                      wanted.piece.shape.to_string()));
  }
  const auto state = tensor->second.states.find(wanted.state);
  if (state == tensor->second.states.end()) {
    throw CheckpointError(fmt::format("{}: tensor \"{}\" has no \"{}\"; it has {}",
                                      checkpoint.string(), name, wanted.state,
                                      nearest_names(tensor->second.states, wanted.state)));
  }
  return state->second;
}

/// Number of elements that a stored piece shares with a wanted one.
std::int64_t shared_elements(const StoredPiece& stored, const Piece& wanted) {
  std::int64_t count = 0;
  for_each_overlap(stored.range, {wanted.box_start, wanted.box_extent, wanted.flat},
                   [&](const OverlapRun& run) { count += run.count; });
  return count;
}

std::vector<Copy> plan_copies(const Manifest& manifest,
                              const fs::path& checkpoint,
                              std::span<const CheckpointTensor> wanted) {
  std::vector<Copy> copies;
  for (const CheckpointTensor& tensor : wanted) {
    const DType dtype = tensor.data.dtype();
    check((dtype == DType::kF32 || dtype == DType::kBF16) &&
              tensor.data.numel() == tensor.piece.flat.size(),
          "\"{}\": {} elements of {} cannot take a piece of {} of f32 or bf16", tensor.piece.tensor,
          tensor.data.numel(), name_of(dtype), tensor.piece.flat.size());
    std::int64_t covered = 0;
    for (const StoredPiece& piece : find_pieces(manifest, checkpoint, tensor)) {
      const std::int64_t count = shared_elements(piece, tensor.piece);
      if (count > 0) {
        copies.push_back({.from = &piece, .to = &tensor});
        covered += count;
      }
    }
    check(covered == tensor.piece.flat.size(), "\"{}\": {} of {} elements in box {} + {}",
          tensor.piece.tensor, covered, tensor.piece.flat.size(),
          tensor.piece.box_start.to_string(), tensor.piece.box_extent.to_string());
  }
  return copies;
}

/// Copies elements of a stored piece, counted from its first, to where they are wanted.
void copy_part(const StoredPiece& piece,
               Range elements,
               const std::byte* from,
               const CheckpointTensor& wanted) {
  BoxedRange part = piece.range;
  part.flat = {piece.range.flat.begin + elements.begin, piece.range.flat.begin + elements.end};
  const BoxedRange box{wanted.piece.box_start, wanted.piece.box_extent, wanted.piece.flat};
  const DType dtype = wanted.data.dtype();
  const auto copy_to = [&](std::byte* to, std::int64_t first) {
    for_each_overlap(part, box, [&](const OverlapRun& run) {
      convert_elements(from + run.stored * size_of(piece.dtype), piece.dtype,
                       to + (run.wanted - first) * size_of(dtype), dtype, run.count);
    });
  };
  if (wanted.device == nullptr) {
    copy_to(static_cast<std::byte*>(wanted.data.data()), 0);
    return;
  }
  // The copy goes by way of the host, from the first to the last element touched, with all in
  // between.
  Range touched{INT64_MAX, 0};
  for_each_overlap(part, box, [&](const OverlapRun& run) {
    touched = {std::min(touched.begin, run.wanted), std::max(touched.end, run.wanted + run.count)};
  });
  if (touched.begin >= touched.end) {
    return;
  }
  const Tensor on_device = wanted.data.flat(touched.begin, touched.end);
  std::vector<std::byte> on_host(static_cast<std::size_t>(on_device.bytes()));
  Stream& stream = wanted.device->compute_stream();
  wanted.device->copy_to_host(on_device, on_host.data(), stream);
  stream.synchronize();
  copy_to(on_host.data(), touched.begin);
  wanted.device->copy_from_host(on_host.data(), on_device, stream);
  stream.synchronize();
}

/// Reads the manifest. Refuses an incomplete checkpoint, and says which others there are.
Manifest open_checkpoint(const fs::path& checkpoint) {
  std::string fault;
  try {
    Manifest manifest = read_manifest(checkpoint);
    if (auto found = fault_of_files(manifest, checkpoint)) {
      fault = std::move(*found);
    } else if (found = fault_of_cover(manifest); found) {
      fault = fmt::format("{}: {}", checkpoint.string(), *found);
    } else {
      return manifest;
    }
  } catch (const CheckpointError& error) {
    fault = error.what();
  }
  std::string usable;
  for (const StepFolder& entry : list_step_folders(checkpoint.parent_path())) {
    if (entry.kind == StepFolder::Kind::kCheckpoint && !fault_of_checkpoint(entry.path)) {
      usable +=
          (usable.empty() ? "; whole ones beside it: " : ", ") + entry.path.filename().string();
    }
  }
  throw DamagedCheckpoint(fault + usable);
}

std::string read_rollouts(const Manifest& manifest, const fs::path& checkpoint) {
  if (!manifest.rollouts) return {};
  const fs::path path = checkpoint / kRolloutsName;
  FileText file = read_regular_file(path.string());
  if (!file.why.empty()) {
    throw DamagedCheckpoint(fmt::format("cannot read {}: {}", path.string(), file.why));
  }
  if (checksum(file.text) != *manifest.rollouts) {
    throw DamagedCheckpoint(
        fmt::format("{}: damaged: it does not have the checksum that {} has of it", path.string(),
                    kManifestName));
  }
  return std::move(file.text);
}

}  // namespace

TrainingState CheckpointStore::load(const fs::path& checkpoint,
                                    std::span<const CheckpointTensor> tensors) {
  const Manifest manifest = open_checkpoint(checkpoint);
  const std::vector<Copy> copies = plan_copies(manifest, checkpoint, tensors);
  PieceReader reader(manifest, checkpoint);
  std::map<const StoredPiece*, std::vector<const CheckpointTensor*>> takers;
  std::vector<std::pair<PieceReader::Place, const StoredPiece*>> order;
  for (const Copy& copy : copies) {
    std::vector<const CheckpointTensor*>& to = takers[copy.from];
    if (to.empty()) {
      order.emplace_back(reader.place_of(*copy.from), copy.from);
    }
    to.push_back(copy.to);
  }
  std::sort(order.begin(), order.end());
  for (const auto& [place, piece] : order) {
    reader.read(*piece, [&](Range elements, const std::byte* bytes) {
      for (const CheckpointTensor* taker : takers[piece]) {
        copy_part(*piece, elements, bytes, *taker);
      }
    });
  }
  TrainingState training = manifest.training;
  training.rollouts = read_rollouts(manifest, checkpoint);
  return training;
}

TrainingState CheckpointStore::training(const fs::path& checkpoint) {
  return open_checkpoint(checkpoint).training;
}

std::vector<CheckpointEntry> CheckpointStore::contents(const fs::path& checkpoint) {
  std::vector<CheckpointEntry> entries;
  const Manifest manifest = open_checkpoint(checkpoint);
  for (const auto& [name, tensor] : manifest.tensors) {
    for (const auto& [state, pieces] : tensor.states) {
      entries.push_back({.state = state, .tensor = name, .shape = tensor.shape});
    }
  }
  return entries;
}

}  // namespace dstrain
