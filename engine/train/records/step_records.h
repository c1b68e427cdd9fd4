// StepRecords: what a run writes about each of its steps, in one format. MetricsWriter
// (observers/) decides what happens where that fails.
#pragma once

#include "engine/train/step_metrics.h"

namespace dstrain {

/// How far a run has come: what it has written about later steps is dropped when it resumes.
struct RunPosition {
  std::int64_t step = 0;
  std::int64_t samples = 0;  ///< sequences of all steps up to it
};

class StepRecords {
 public:
  StepRecords() = default;
  StepRecords(const StepRecords&) = delete;
  StepRecords& operator=(const StepRecords&) = delete;
  virtual ~StepRecords() = default;

  /// Writes what there is to say about a step; `is_last` says that no step follows. Throws
  /// StorageError, after which it waits for the next call.
  virtual void write(const StepMetrics& metrics, bool is_last) = 0;
  [[nodiscard]] virtual bool has_unwritten() const = 0;
};

}  // namespace dstrain
