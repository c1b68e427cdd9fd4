// SampledTexts: samples.jsonl in a run's folder, a line for each text that the model continued at
// an evaluation.
#pragma once

#include <filesystem>

#include "engine/train/records/step_lines.h"
#include "engine/train/records/step_records.h"

namespace dstrain {

class SampledTexts final : public StepRecords {
 public:
  static constexpr const char* kFile = "samples.jsonl";

  /// Continues after `resumed_step`. Throws StorageError.
  SampledTexts(const std::filesystem::path& output_dir, std::int64_t resumed_step);

  void write(const StepMetrics& metrics, bool is_last) override;
  [[nodiscard]] bool has_unwritten() const override { return lines_.has_unwritten(); }

 private:
  StepLines lines_;
};

}  // namespace dstrain
