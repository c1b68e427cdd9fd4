// CheckpointStore: a run's folder of checkpoints. A checkpoint is whole or absent, and speaks of
// tensors and boxes, never of the ranks that wrote it. Layout on disk: FORMAT.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/plan/shard_map.h"
#include "kernels/core/tensor.h"

namespace dstrain {

/// A checkpoint that was asked for cannot be used. Exit code 5.
class CheckpointError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
/// Writing failed: path, cause, needed and free bytes. Exit code 6.
class StorageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// What a checkpoint holds of one parameter: "parameter" (the fp32 master), "exp_avg", "exp_avg_sq".
struct CheckpointTensor {
  std::string state;
  Piece piece;
  Tensor data;  ///< f32, host memory, piece.flat.size() elements; read by save, written by load
};

/// The scalars of a training state.
struct TrainingState {
  std::int64_t step = 0;              ///< optimizer steps done
  std::int64_t consumed_samples = 0;  ///< next sample of the training data
  std::int64_t optimizer_step = 0;    ///< t of the bias correction
  std::int64_t scheduler_step = 0;    ///< DeepSpeed's last_batch_iteration + 1
  std::uint64_t seed = 0;
  std::string config;                 ///< the resolved config, JSON
};

class CheckpointStore {
 public:
  /// `folder`: <output_dir>/checkpoints. Nothing is created before the first save.
  explicit CheckpointStore(std::filesystem::path folder);

  /// Collective over `world`. Every rank writes its own file into a temporary folder and fsyncs
  /// it; rank 0 gathers what they hold, checks that each tensor is covered exactly once, writes
  /// manifest.json, renames the folder, then `latest`, then removes all but the newest `keep`.
  /// Throws StorageError on all ranks if it fails on one; an earlier checkpoint stays intact.
  void save(const TrainingState& state, std::span<const CheckpointTensor> tensors,
            std::int64_t keep, Communicator& world);

  /// The newest whole checkpoint, or none.
  [[nodiscard]] std::optional<std::filesystem::path> latest() const;

  /// Fills `tensors` from the pieces that intersect them, whoever wrote those. Throws
  /// CheckpointError, naming file and tensor, if something is missing, damaged or of another shape;
  /// nothing is written to any tensor unless all of them can be.
  static TrainingState load(const std::filesystem::path& checkpoint,
                            std::span<const CheckpointTensor> tensors);

 private:
  std::filesystem::path folder_;
};

}  // namespace dstrain
