// The names in a run's folder of checkpoints, and which of them are usable.
//
//   step-00000400        a checkpoint: whole, or damaged by somebody else
//   .step-00000400.tmp   one being written, or the remains of a save that died
//   .step-00000400.old   one being replaced or removed; whole if that died at once
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace dstrain {

struct StepFolder {
  enum class Kind : std::uint8_t { kCheckpoint, kTemporary, kOld };
  Kind kind;
  std::int64_t step;
  std::filesystem::path path;
};

std::string step_name(std::int64_t step);
std::string temporary_name(const std::string& name);
std::string old_name(const std::string& name);

/// Newest first; of the same step, checkpoints before old ones. Other names are left out. Empty if
/// `folder` does not exist.
std::vector<StepFolder> list_step_folders(const std::filesystem::path& folder);

/// Returns why a checkpoint cannot be used; nothing if it can. Reads the manifest and looks at the
/// sizes of the files it names; their bytes are checked when they are loaded.
std::optional<std::string> fault_of_checkpoint(const std::filesystem::path& checkpoint);

}  // namespace dstrain
