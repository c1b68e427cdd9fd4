// WatchedRun: what `dstrain watch` shows of a run, taken from its files again and again while they
// grow.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cmd/runs/run_overview.h"
#include "cmd/why/step_account.h"

namespace dstrain {

struct WatchedRun {
  RunOverview overview;
  std::vector<double> losses;          ///< of the steps that were seen, thinned out
  std::vector<double> validations;     ///< likewise
  std::optional<StepAccount> account;  ///< of the last steps; none where no line says it
  RankSeconds ranks;
  std::vector<double> peak_bytes;  ///< by rank; may be empty

  /// Seconds until the last step; none where there is no telling.
  [[nodiscard]] std::optional<double> seconds_left() const;
};

class RunWatcher {
 public:
  /// Throws as overview_of() does. Of a long file of metrics only the end is read.
  explicit RunWatcher(std::filesystem::path folder);

  /// Looks again.
  void look();
  [[nodiscard]] const WatchedRun& run() const { return run_; }

 private:
  void read_new_lines();

  std::filesystem::path folder_;
  std::int64_t read_ = 0;  ///< bytes of metrics.jsonl
  WatchedRun run_;
};

}  // namespace dstrain
