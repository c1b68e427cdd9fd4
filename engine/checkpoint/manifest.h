// Manifest: what a checkpoint holds, tensor by tensor, and in which file each piece lies. It never
// says which rank wrote or will read what. One rank's share is a manifest of one file; rank 0 puts
// the shares together. Text form: FORMAT.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/checkpoint/checkpoint_contents.h"
#include "engine/checkpoint/piece_overlap.h"

namespace dstrain {

inline constexpr std::string_view kManifestName = "manifest.json";
inline constexpr std::string_view kRolloutsName = "rollouts.json";  ///< TrainingState::rollouts

struct StoredFile {
  std::string name;  ///< beside the manifest
  std::int64_t bytes = 0;
  std::uint64_t header_checksum = 0;
};

struct StoredPiece {
  std::size_t file = 0;  ///< index into Manifest::files
  std::string key;       ///< the tensor's name in that file
  BoxedRange range;
  DType dtype = DType::kF32;  ///< or kBF16
  std::uint64_t checksum = 0;
};

struct StoredTensor {
  Shape shape;
  std::map<std::string, std::vector<StoredPiece>> states;  ///< by state: "parameter", …
};

struct Manifest {
  TrainingState training;
  std::optional<std::uint64_t> rollouts{};  ///< the checksum of kRolloutsName; none: there is none
  std::vector<StoredFile> files;
  std::map<std::string, StoredTensor> tensors;
};

/// The file's text; its first line holds the checksum of all that follows.
std::string to_text(const Manifest& manifest);
/// Throws CheckpointError if a byte of it is not the one that was written, or if it is not a
/// manifest.
Manifest parse_manifest(std::string_view text);
/// Reads <checkpoint>/manifest.json; errors name it.
Manifest read_manifest(const std::filesystem::path& checkpoint);

/// "F32" or "BF16", in the manifest as in safetensors' headers.
std::string_view stored_name(DType dtype);

/// Adds another rank's share. Throws InternalError if the two contradict each other.
void merge(Manifest& whole, Manifest share);
/// Returns why the pieces do not cover every tensor exactly once; nothing if they do.
std::optional<std::string> fault_of_cover(const Manifest& manifest);
/// Returns why the files beside the manifest are not the ones that it names; nothing if they are.
/// Looks at sizes, not at bytes.
std::optional<std::string> fault_of_files(const Manifest& manifest,
                                          const std::filesystem::path& checkpoint);

}  // namespace dstrain
