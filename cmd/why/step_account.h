// StepAccount: where the wall time of a run's last steps went, as its files have it: metrics.jsonl
// the parts of every step (engine/train/time_split.h), ranks.jsonl the seconds of each rank.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "engine/train/time_split.h"

namespace dstrain {

struct StepAccount {
  std::int64_t first_step = 0;
  std::int64_t last_step = 0;
  double wall = 0.0;  ///< seconds from the end of the step before the first to that of the last

  // Seconds of all the steps.
  double compute = 0.0;
  double data = 0.0;
  std::array<double, kWaitsFor> communication{};
  double pipeline = 0.0;
  double straggler = 0.0;
  double host = 0.0;  ///< of rank 0, within steps
  double evaluation = 0.0;
  double checkpoint = 0.0;

  std::map<int, int> slowest;  ///< by rank: in how many steps it was
  double slower_by = 0.0;      ///< of the rank that was so most often, the mean of those steps

  /// Returns the wall time that no part explains; it is below 0 where parts overlap.
  [[nodiscard]] double unexplained() const;
  [[nodiscard]] std::int64_t steps() const { return last_step - first_step + 1; }
  /// Returns the rank that was slowest most often.
  [[nodiscard]] int slowest_rank() const;
};

/// Adds up the last `most` steps, fewer where there are no more. The first step of the file is left
/// out, since nothing says when it began. Throws ConfigError where no line says where its time
/// went.
StepAccount account_of(const std::filesystem::path& folder, std::int64_t most);

/// The seconds of each rank: means of the last steps (ranks.recent.json) or, where nobody has
/// written these, those of the last step that has them (ranks.jsonl).
struct RankSeconds {
  std::int64_t step = 0;
  std::vector<double> computing;
  std::vector<double> data;
  std::map<std::string, std::vector<double>> waiting_for;  ///< by name_of(WaitFor)
  /// Those that all others together waited for bytes from and to each; may be empty.
  std::vector<double> bytes_waited_for;
};
/// Returns empty lists where the file has none, or lists of different lengths.
RankSeconds rank_seconds(const std::filesystem::path& folder);

}  // namespace dstrain
