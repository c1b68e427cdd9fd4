#include "cmd/launch/folder_claim.h"

#include <filesystem>
#include <system_error>

#include <fmt/format.h>

namespace dstrain {

std::unique_ptr<RunOwner> claim_folder(const LaunchFlags& flags,
                                       const Config& config,
                                       const std::string& job,
                                       int restart) {
  const std::filesystem::path folder = config.training.output_dir;
  std::error_code error;
  const bool exists = std::filesystem::is_directory(folder, error);
  // Its logs go into the folder, unless the user wants them elsewhere.
  if (flags.run.evaluates || (!exists && !flags.log_folder.empty())) {
    return nullptr;
  }
  if (restart > 0 && !exists) {
    throw FolderGone(fmt::format(
        "{} has been deleted or moved away since the previous attempt; it is not created again",
        folder.string()));
  }
  return std::make_unique<RunOwner>(folder,
                                    OwnerClaim{.job = job,
                                               .restart = restart,
                                               .role = OwnerRole::kLauncher,
                                               .take_over = flags.run.takes_over && restart == 0});
}

}  // namespace dstrain
