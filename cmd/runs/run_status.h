// RunStatus: what a run's folder shows about the run that is there, or was, without changing
// anything.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "engine/checkpoint/owner/owner_record.h"
#include "engine/checkpoint/owner/owner_state.h"

namespace dstrain {

struct RunStatus {
  std::filesystem::path folder;
  /// The run that owns the folder according to owner.json, or, if none does, the last one that did.
  std::optional<OwnerRecord> owner;
  bool has_owner_file = false;
  OwnerJudgement judgement{};          ///< where there is an owner.json
  std::optional<double> beat_age_s{};  ///< by the clocks of this machine and the file's
  std::filesystem::path checkpoint{};  ///< empty: none that is whole
  std::int64_t checkpoint_step = -1;
  double checkpoint_age_s = 0.0;
  std::string checkpoint_fault{};  ///< why none is, though there are some
  std::optional<std::int64_t> metrics_step{};
  std::string metrics_time{};  ///< when that step ended, as metrics.jsonl says it
};

/// Looks for at most `patience`, where another machine's heartbeat must be seen to be believed.
/// Throws ConfigError where nothing in `folder` is a run's, StorageError where it cannot be read.
RunStatus look_at_run(const std::filesystem::path& folder, std::chrono::milliseconds patience);

/// "running", "not running", "unknown".
std::string state_word(const RunStatus& status);
std::string to_text(const RunStatus& status);
/// One object, with a line end.
std::string to_json_text(const RunStatus& status);

}  // namespace dstrain
