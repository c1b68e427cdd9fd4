#include "cmd/start_check.h"

#include <optional>
#include <string>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "engine/spec/config_error.h"
#include "engine/train/resume.h"

namespace dstrain {

bool check_start(const LaunchFlags& flags, const LoadedConfig& loaded) {
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
