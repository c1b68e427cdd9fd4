// RecentRanks: ranks.recent.json in a run's folder, a line as in ranks.jsonl about the last ten
// steps: the means of each rank's seconds, its memory and device now. It replaces itself as the run
// goes on, about twice a second, so that whoever asks why steps are slow hears of these steps, and
// not of those a hundredth of the run ago.
#pragma once

#include <chrono>
#include <filesystem>
#include <vector>

#include "engine/train/records/step_records.h"

namespace dstrain {

class RecentRanks final : public StepRecords {
 public:
  static constexpr const char* kFile = "ranks.recent.json";
  static constexpr std::size_t kSteps = 10;

  /// Removes the file of an earlier start.
  explicit RecentRanks(const std::filesystem::path& output_dir);

  /// What cannot be written is left out: it would be replaced anyway.
  void write(const StepMetrics& metrics, bool is_last) override;
  [[nodiscard]] bool has_unwritten() const override { return false; }

 private:
  using Clock = std::chrono::steady_clock;

  std::filesystem::path path_;
  std::vector<std::vector<RankTime>> steps_;  ///< the last of them, oldest first
  Clock::time_point next_{};
};

}  // namespace dstrain
