// WandbRun: the curves of a run as an offline run of Weights & Biases, which `wandb sync` sends:
//
//   <output_dir>/wandb/offline-run-<date>_<time>-<id>/run-<id>.wandb
//
// A run that resumes continues the newest file, so that it stays one run there too. Messages are
// those of wandb_internal.proto.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "engine/config/monitor_config.h"
#include "engine/train/records/appended_file.h"
#include "engine/train/records/run_description.h"
#include "engine/train/records/step_records.h"

namespace dstrain {

class WandbRun final : public StepRecords {
 public:
  /// Continues the newest run in `folder`, which exists, after `resumed`, and begins one where
  /// there is none, or at step 0. Throws StorageError.
  WandbRun(const std::filesystem::path& folder,
           const RunPosition& resumed,
           const RunDescription& run,
           const WandbConfig& config);

  void write(const StepMetrics& metrics, bool is_last) override;
  [[nodiscard]] bool has_unwritten() const override { return file_->has_unwritten(); }
  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }

 private:
  void add(std::int64_t step, const std::string& record);

  std::filesystem::path folder_;
  std::optional<AppendedFile> file_;
  std::int64_t records_ = 0;                     ///< in the file
  std::chrono::system_clock::time_point start_;  ///< of the run, not of its last resume
};

}  // namespace dstrain
