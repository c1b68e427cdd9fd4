// RunOverview: a run in a few words: whether it runs, how far it is, how it does. The list of runs,
// reports and `dstrain why` begin with it.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cmd/runs/run_files.h"
#include "cmd/runs/run_status.h"

namespace dstrain {

struct RunOverview {
  RunStatus status;
  nlohmann::ordered_json config;  ///< resolved; null where there is none
  std::vector<RunStart> starts;
  nlohmann::json last_line;  ///< of metrics.jsonl; null before the first step
  std::optional<std::int64_t> total_steps;
  std::optional<double> validation_loss;  ///< the last in reach of the file's end

  [[nodiscard]] std::int64_t step() const { return status.metrics_step.value_or(0); }
};

/// Throws as look_at_run() does.
RunOverview overview_of(const std::filesystem::path& folder, std::chrono::milliseconds patience);

/// "running", "finished", "stopped", "failed", "died", "unknown", "not running".
std::string run_word(const RunOverview& run);
/// Why it ended, or what it is doing: "failed: gradients are not finite"; may be empty.
std::string last_word(const RunOverview& run);

/// Runs at or below `folder`, to a depth of a few folders; those of the newest change first.
std::vector<std::filesystem::path> find_runs(const std::filesystem::path& folder);

}  // namespace dstrain
