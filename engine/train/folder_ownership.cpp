#include "engine/train/folder_ownership.h"

#include <optional>

#include "engine/checkpoint/agreement.h"
#include "engine/train/resume.h"

namespace dstrain {
namespace {

/// A folder whose run is complete is not touched.
bool has_steps_to_train(const Config& config) {
  const std::optional<ResumedFrom> from =
      checkpoint_to_resume(config, CheckpointStore::Look::kSilently);  // the run looks again
  return !from || !is_done(config, from->training);
}

}  // namespace

std::unique_ptr<RunOwner> own_folder(const Config& config,
                                     const TrainOptions& options,
                                     Communicator& world) {
  std::unique_ptr<RunOwner> owner;
  if (options.goal != RunGoal::kTrain) {
    return owner;
  }
  all_or_none(world, [&] {
    if (world.rank() == 0 && has_steps_to_train(config)) {
      owner = std::make_unique<RunOwner>(config.training.output_dir,
                                         options.owner == nullptr ? OwnerClaim{} : *options.owner);
    }
  });
  return owner;
}

}  // namespace dstrain
