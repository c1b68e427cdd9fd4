// TensorBoard: the curves of a run as TensorBoard shows them, with the run's config as text and its
// values as hyperparameters. Messages are those of TensorFlow's event.proto and summary.proto and
// of TensorBoard's plugins for text and hyperparameters.
//
//   events.out.tfevents.<seconds since 1970>.<host>.<process>.0    one for each start of the run
//
// A curve is over steps, or, where DeepSpeed names it, over samples.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "engine/train/records/appended_file.h"
#include "engine/train/records/run_description.h"
#include "engine/train/records/step_records.h"

namespace dstrain {

class TensorBoard final : public StepRecords {
 public:
  /// Begins a file in `folder`, which exists and has no other run's files. What earlier files say
  /// of steps after `resumed` is cut off, and step 0 removes these files. Throws StorageError.
  TensorBoard(const std::filesystem::path& folder,
              const RunPosition& resumed,
              const RunDescription& run);

  void write(const StepMetrics& metrics, bool is_last) override;
  [[nodiscard]] bool has_unwritten() const override { return file_.has_unwritten(); }

 private:
  AppendedFile file_;
};

}  // namespace dstrain
