// CheckpointStore: a run's folder of checkpoints. A checkpoint is whole or absent, and speaks of
// tensors and boxes, never of the ranks that wrote it. Layout on disk: FORMAT.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint_contents.h"
#include "engine/checkpoint/checkpoint_error.h"
#include "engine/checkpoint/durable_files.h"
#include "engine/checkpoint/foreign/huggingface/companions.h"
#include "engine/checkpoint/owner/run_owner.h"
#include "engine/comm/communicator.h"

namespace dstrain {

class CheckpointStore {
 public:
  /// `folder`: <output_dir>/checkpoints, on a file system that all ranks share. Nothing is created
  /// before the first save. `probe` sees each change of the disk before it is made (tests).
  explicit CheckpointStore(std::filesystem::path folder, DiskProbe probe = {});

  /// Small files that rank 0 puts into every checkpoint from now on, beside the manifest: the
  /// tokenizer's, and the config.json that came with the first weights.
  void set_companions(Companions companions) { companions_ = std::move(companions); }
  /// With an owner, rank 0 changes nothing here that is no longer its run's. nullptr: nobody else
  /// saves to this folder. The owner must outlive the store.
  void set_owner(const RunOwner* owner) { owner_ = owner; }

  /// Collective over `world`, which must carry host memory. Every rank writes its own file into a
  /// temporary folder and fsyncs it; rank 0 gathers what they hold, checks that each tensor is
  /// covered exactly once, writes manifest.json, renames the folder, then `latest`, then removes
  /// all but the newest `keep` (≥ 1): those that are not whole are neither counted nor removed. A
  /// checkpoint of the same step is replaced. Throws
  /// StorageError on all ranks if it fails on one, FolderInUse or FolderGone if the folder is no
  /// longer the owner's, InternalError if the pieces do not fit together; the checkpoints that were
  /// there stay whole.
  void save(const TrainingState& state,
            std::span<const CheckpointTensor> tensors,
            std::int64_t keep,
            Communicator& world);

  /// The one that `latest` names, else the newest whole one, or none if nothing was ever saved.
  /// What is odd about that is logged as a warning, unless this is a first look that another
  /// follows. Throws CheckpointError if there is something, but nothing whole. Not collective: let
  /// one rank ask and tell the others.
  enum class Look : std::uint8_t { kAndWarn, kSilently };
  [[nodiscard]] std::optional<std::filesystem::path> latest(Look look = Look::kAndWarn) const;

  /// Counts `checkpoint` as not whole from now on, because of `fault`: latest() passes it over. It
  /// is meant for damage that only reading the data shows.
  void pass_over(const std::filesystem::path& checkpoint, std::string fault);
  /// The newest checkpoint by name, whole or not; none if the folder holds none.
  [[nodiscard]] std::optional<std::filesystem::path> newest_name() const;

  /// Fills `tensors` from the pieces that intersect them, whoever wrote those. Throws
  /// CheckpointError, naming file and tensor, if something is missing or of another shape, before
  /// anything is written to any tensor; its DamagedCheckpoint if bytes are not those that were
  /// written or cannot be read, and what the tensors hold is undefined then. Not collective.
  static TrainingState load(const std::filesystem::path& checkpoint,
                            std::span<const CheckpointTensor> tensors);

  /// Returns what load() returns, without loading. Throws CheckpointError.
  static TrainingState training(const std::filesystem::path& checkpoint);

  /// All that a checkpoint holds, sorted by tensor, then state. Throws CheckpointError.
  static std::vector<CheckpointEntry> contents(const std::filesystem::path& checkpoint);

 private:
  /// Returns nothing where the folder has no owner.
  [[nodiscard]] std::optional<RunOwner::Hold> hold_folder() const;
  void commit(const std::string& name, const std::string& manifest) const;
  void remove_outdated(const std::string& newest, std::int64_t keep) const;
  [[nodiscard]] std::optional<std::string> fault_of(const std::filesystem::path& checkpoint) const;

  std::filesystem::path folder_;
  DurableFiles files_;
  Companions companions_;
  const RunOwner* owner_ = nullptr;
  std::map<std::filesystem::path, std::string> passed_over_;  ///< and why
};

}  // namespace dstrain
