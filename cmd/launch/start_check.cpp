#include "cmd/launch/start_check.h"

#include <filesystem>
#include <optional>
#include <string>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "engine/checkpoint/owner/owner_state.h"
#include "engine/config/config_error.h"
#include "engine/train/resume.h"

namespace dstrain {
namespace {

/// Warns of the folder's owner before a start that trains.
void warn_of_owner(const std::filesystem::path& folder) {
  const auto owner = open_owner_file(folder / kOwnerFile);
  if (!owner || !owner->record) return;
  const OwnerJudgement judgement = judge_owner(*owner, own_identity());
  if (judgement.state != OwnerState::kDead) {
    spdlog::warn("{} {} to {} ({}); without --take-over this run would be refused while it is",
                 folder.string(),
                 judgement.state == OwnerState::kUnknown ? "may belong" : "belongs",
                 describe(*owner->record), judgement.because);
  }
}

}  // namespace

bool check_start(const LaunchFlags& flags, const LoadedConfig& loaded) {
  if (flags.check && !flags.run.evaluates) {
    warn_of_owner(loaded.config.training.output_dir);
  }
  const std::optional<ResumedFrom> from = checkpoint_to_resume(loaded.config);
  if (const auto conflict = tokenizer_conflict(loaded.config, from ? &*from : nullptr)) {
    if (!flags.run.allow_tokenizer_mismatch) {
      throw ConfigError(*conflict);
    }
    if (flags.check) {
      spdlog::warn("{}", *conflict);
    }
  }
  if (!from || flags.run.evaluates) {
    return true;
  }
  if (is_done(loaded.config, from->training)) {
    spdlog::info("{}", describe_done(loaded.config, *from));
    return false;
  }
  if (flags.check) {
    for (const std::string& line : describe_resume(
             fmt::format("would resume step {} of {}", from->training.step, from->path.string()),
             *from, loaded)) {
      spdlog::info("{}", line);
    }
  }
  return true;
}

}  // namespace dstrain
