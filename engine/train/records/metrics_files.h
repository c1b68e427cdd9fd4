// The metrics that a run writes about its steps in <output_dir>, by rank 0, one JSON object a line:
//
//   metrics.jsonl   a line a step: what does not grow with the ranks
//   ranks.jsonl     memory, seconds and devices of every rank: the first step, a hundredth of the
//                   run apart, and the last step. About 110 bytes a rank and line on CPUs: of 3072
//                   ranks and any number of steps not 40 MB, where a line a step would make 24 GB
//                   of 71,500 steps
//   experts.jsonl   of a mixture of experts, what each expert of each layer had to do; as often
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/train/records/step_lines.h"
#include "engine/train/records/step_records.h"

namespace dstrain {

class MetricsFiles final : public StepRecords {
 public:
  /// Opens them in `folder`, for a run that continues after `resumed_step` until `last_step`; that
  /// of experts where the model has some. Throws StorageError.
  MetricsFiles(const std::filesystem::path& folder,
               std::int64_t resumed_step,
               std::int64_t last_step,
               bool has_experts = false);

  /// Writes a step's lines; `is_last` says that no step follows. Throws StorageError, after which
  /// the lines wait for the next call (StepLines).
  void write(const StepMetrics& metrics, bool is_last) override;
  [[nodiscard]] bool has_unwritten() const override {
    return steps_.has_unwritten() || ranks_.has_unwritten() ||
           (experts_ && experts_->has_unwritten());
  }

 private:
  StepLines steps_;
  StepLines ranks_;
  std::optional<StepLines> experts_;
  std::int64_t first_step_;
  std::int64_t ranks_interval_;
};

/// A line of metrics.jsonl, of ranks.jsonl and of experts.jsonl. `now` is when the step, and an
/// evaluation after it, ended.
std::string metrics_line(const StepMetrics& metrics, std::chrono::system_clock::time_point now);
std::string ranks_line(const StepMetrics& metrics, std::chrono::system_clock::time_point now);
/// As a line of ranks.jsonl of the last step of a row of them, whose ranks' times are `rows`: the
/// means of their seconds.
std::string ranks_line(const StepMetrics& last,
                       std::span<const std::vector<RankTime>> rows,
                       std::chrono::system_clock::time_point now);
std::string experts_line(const StepMetrics& metrics, std::chrono::system_clock::time_point now);

}  // namespace dstrain
