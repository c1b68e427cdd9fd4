// CsvFiles: the curves of a run as comma-separated values, for a program that reads tables.
//
//   metrics.csv                   a row a step: "step", "time" in seconds since 1970, then every
//                                 curve; a field is empty where that was not measured
//   Train_Samples_train_loss.csv  DeepSpeed's files (csv_monitor), each with a curve over samples,
//   Train_Samples_lr.csv          which its header calls "step"
//   Train_Samples_loss_scale.csv
#pragma once

#include <filesystem>
#include <vector>

#include "engine/train/records/appended_file.h"
#include "engine/train/records/step_records.h"

namespace dstrain {

class CsvFiles final : public StepRecords {
 public:
  /// Opens the files in `folder`, which exists. Rows of steps after `resumed` are dropped; step 0
  /// starts them anew. Throws StorageError.
  CsvFiles(const std::filesystem::path& folder, const RunPosition& resumed);

  void write(const StepMetrics& metrics, bool is_last) override;
  [[nodiscard]] bool has_unwritten() const override;

 private:
  AppendedFile table_;
  std::vector<AppendedFile> over_samples_;
};

}  // namespace dstrain
