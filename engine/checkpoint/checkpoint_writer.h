// Writes a dstrain checkpoint from any TensorSource, without the ranks of a run: each file takes a
// range of every tensor's every state, as if so many ranks had saved it. Layout on disk: FORMAT.md.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "engine/checkpoint/manifest.h"
#include "engine/checkpoint/tensor_source.h"
#include "engine/checkpoint/written_file.h"

namespace dstrain {

struct CheckpointShare {
  int rank = 0;
  int ranks = 1;
  /// The dtype of the parameters. Everything else, or everything if this is absent, keeps its
  /// dtype, but F16 becomes F32.
  std::optional<DType> dtype;
};

/// "rank-00000.safetensors"
std::string share_name(int rank);
/// Elements of all states in the share, in bytes.
std::int64_t share_bytes(const TensorSource& source, const CheckpointShare& share);

WrittenFile write_checkpoint_share(const DurableFiles& files,
                                   const std::filesystem::path& path,
                                   const TensorSource& source,
                                   const CheckpointShare& share,
                                   const ByteProgress& progress);

/// The manifest's entry for a share that has been written.
Manifest manifest_of_share(const std::filesystem::path& path,
                           const TensorSource& source,
                           const CheckpointShare& share,
                           const TrainingState& training);

}  // namespace dstrain
