#include "cmd/launch/committed_checkpoint.h"

#include <system_error>

#include "engine/checkpoint/checkpoint_store.h"
#include "engine/checkpoint/step_folders.h"

namespace dstrain {

namespace fs = std::filesystem;

std::optional<CommittedCheckpoint> committed_checkpoint(const Config& config) {
  const fs::path folder = fs::path(config.training.output_dir) / "checkpoints";
  std::optional<fs::path> newest;
  try {
    newest = CheckpointStore(folder).latest();
  } catch (const CheckpointError&) {
    return std::nullopt;  // there are some, none of them whole: the ranks say more of it
  }
  if (!newest) return std::nullopt;
  CommittedCheckpoint found{.path = *newest};
  for (const StepFolder& entry : list_step_folders(folder)) {
    if (entry.path == *newest) found.step = entry.step;
  }
  std::error_code gone;  // replaced meanwhile: then the time says that it is another one
  found.written = fs::last_write_time(*newest / "manifest.json", gone);
  return found;
}

}  // namespace dstrain
