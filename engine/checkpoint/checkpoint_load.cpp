// Loading in two passes: first everything that could be wrong is looked at (names, shapes, sizes,
// checksums of every piece that will be read), then bytes are copied, which cannot fail.
#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <system_error>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include "engine/checkpoint/checkpoint_store.h"
#include "engine/checkpoint/checksum.h"
#include "engine/checkpoint/manifest.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/checkpoint/step_folders.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

/// Part of a stored piece that goes into part of a wanted one.
struct Copy {
  const StoredPiece* from;
  const CheckpointTensor* to;
};

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

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

/// Runs of `copy` in elements; returns how many elements there are.
std::int64_t for_each_run(const Copy& copy, const std::function<void(const OverlapRun&)>& visit) {
  const Piece& piece = copy.to->piece;
  std::int64_t count = 0;
  for_each_overlap(copy.from->range, {piece.box_start, piece.box_extent, piece.flat},
                   [&](const OverlapRun& run) {
                     count += run.count;
                     visit(run);
                   });
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
      const Copy copy{.from = &piece, .to = &tensor};
      const std::int64_t count = for_each_run(copy, [](const OverlapRun&) {});
      if (count > 0) {
        copies.push_back(copy);
        covered += count;
      }
    }
    check(covered == tensor.piece.flat.size(), "\"{}\": {} of {} elements in box {} + {}",
          tensor.piece.tensor, covered, tensor.piece.flat.size(),
          tensor.piece.box_start.to_string(), tensor.piece.box_extent.to_string());
  }
  return copies;
}

/// The files of a checkpoint, mapped when first needed, and their bytes once verified.
class VerifiedFiles {
 public:
  VerifiedFiles(const Manifest& manifest, fs::path checkpoint)
      : manifest_(manifest), checkpoint_(std::move(checkpoint)), files_(manifest.files.size()) {}

  /// Throws CheckpointError unless the piece's bytes are those that were written.
  void verify(const StoredPiece& piece) {
    if (verified_.contains(&piece)) {
      return;
    }
    const SafetensorsFile& file = open(piece.file);
    const auto entry = file.tensors().find(piece.key);
    const std::vector<std::int64_t> shape{piece.range.flat.size()};
    const std::string_view dtype = stored_name(piece.dtype);
    if (entry == file.tensors().end() || entry->second.dtype != dtype ||
        entry->second.shape != shape) {
      throw CheckpointError(fmt::format("{}: \"{}\" is not there as {} elements of {}",
                                        file.path().string(), piece.key, shape[0], dtype));
    }
    const auto bytes = file.data(entry->second);
    if (const std::uint64_t found = checksum(bytes); found != piece.checksum) {
      throw CheckpointError(
          fmt::format("{}: \"{}\" is damaged: its {} bytes have checksum {}, "
                      "the manifest says {}",
                      file.path().string(), piece.key, bytes.size(), checksum_text(found),
                      checksum_text(piece.checksum)));
    }
    verified_.emplace(&piece, bytes);
  }
  [[nodiscard]] std::span<const std::byte> bytes(const StoredPiece& piece) const {
    return verified_.at(&piece);
  }

 private:
  const SafetensorsFile& open(std::size_t index) {
    std::unique_ptr<SafetensorsFile>& file = files_[index];
    if (!file) {
      file = std::make_unique<SafetensorsFile>(checkpoint_ / manifest_.files[index].name);
      if (checksum(file->header()) != manifest_.files[index].header_checksum) {
        throw CheckpointError(
            fmt::format("{}: its header is damaged: it does not have the checksum "
                        "that the manifest says",
                        file->path().string()));
      }
    }
    return *file;
  }

  const Manifest& manifest_;
  fs::path checkpoint_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<const StoredPiece*, std::span<const std::byte>> verified_;
};

template <typename From, typename To>
void convert(const std::byte* from, std::byte* to, std::int64_t count) {
  const auto* source = reinterpret_cast<const From*>(from);
  auto* target = reinterpret_cast<To*>(to);
  for (std::int64_t i = 0; i < count; ++i) {
    if constexpr (std::is_same_v<To, BF16>) {
      target[i] = to_bf16(source[i]);
    } else {
      target[i] = to_float(source[i]);
    }
  }
}

/// What was stored in one dtype to where it is wanted in the same or the other.
void copy_elements(
    const std::byte* from, DType from_dtype, std::byte* to, DType to_dtype, std::int64_t count) {
  if (from_dtype == to_dtype) {
    std::memcpy(to, from, static_cast<std::size_t>(count * size_of(to_dtype)));
  } else if (to_dtype == DType::kF32) {
    convert<BF16, float>(from, to, count);
  } else {
    convert<float, BF16>(from, to, count);
  }
}

/// Reads the manifest and refuses what is not whole, saying what else there is.
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
  throw CheckpointError(fault + usable);
}

}  // namespace

TrainingState CheckpointStore::load(const fs::path& checkpoint,
                                    std::span<const CheckpointTensor> tensors) {
  const Manifest manifest = open_checkpoint(checkpoint);
  const std::vector<Copy> copies = plan_copies(manifest, checkpoint, tensors);
  VerifiedFiles files(manifest, checkpoint);
  for (const Copy& copy : copies) {
    files.verify(*copy.from);
  }
  for (const Copy& copy : copies) {
    const std::byte* from = files.bytes(*copy.from).data();
    auto* to = static_cast<std::byte*>(copy.to->data.data());
    const DType stored = copy.from->dtype;
    const DType wanted = copy.to->data.dtype();
    for_each_run(copy, [&](const OverlapRun& run) {
      copy_elements(from + run.stored * size_of(stored), stored, to + run.wanted * size_of(wanted),
                    wanted, run.count);
    });
  }
  return manifest.training;
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
