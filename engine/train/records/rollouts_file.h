// RolloutsFile: rollouts.jsonl in a run's folder, a line for each completion that was sampled,
// rewarded and trained.
#pragma once

#include <filesystem>

#include "engine/train/records/step_lines.h"
#include "engine/train/records/step_records.h"

namespace dstrain {

class RolloutsFile final : public StepRecords {
 public:
  static constexpr const char* kFile = "rollouts.jsonl";

  /// Continues after `resumed_step`. Throws StorageError.
  RolloutsFile(const std::filesystem::path& output_dir, std::int64_t resumed_step);

  void write(const StepMetrics& metrics, bool is_last) override;
  [[nodiscard]] bool has_unwritten() const override { return lines_.has_unwritten(); }

 private:
  StepLines lines_;
};

}  // namespace dstrain
