// Writes what a run records of its steps (records/), as long as the run's folder is its own.
#pragma once

#include <memory>
#include <vector>

#include "engine/checkpoint/owner/run_owner.h"
#include "engine/config/config.h"
#include "engine/train/observers/run_observer.h"
#include "engine/train/records/step_records.h"

namespace dstrain {

class MetricsWriter final : public RunObserver {
 public:
  /// A step that cannot be written is treated like a save that cannot be written: it stops the run,
  /// or waits. `owner` outlives it.
  MetricsWriter(std::vector<std::unique_ptr<StepRecords>> records,
                SaveFailure on_failure,
                const RunOwner& owner);

  void on_step(const StepMetrics& metrics, bool is_last) override;

 private:
  std::vector<std::unique_ptr<StepRecords>> records_;
  SaveFailure on_failure_;
  const RunOwner& owner_;
};

}  // namespace dstrain
