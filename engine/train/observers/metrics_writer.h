// Writes metrics.jsonl and the files beside it (metrics.h), as long as the run's folder is its own.
#pragma once

#include <cstdint>
#include <filesystem>

#include "engine/checkpoint/owner/run_owner.h"
#include "engine/config/config.h"
#include "engine/train/metrics.h"
#include "engine/train/observers/run_observer.h"

namespace dstrain {

class MetricsWriter final : public RunObserver {
 public:
  /// Takes what MetricsFiles takes. A line that cannot be written is treated like a save that
  /// cannot be written: it stops the run, or waits. `owner` outlives it.
  MetricsWriter(const std::filesystem::path& folder,
                std::int64_t resumed_step,
                std::int64_t last_step,
                SaveFailure on_failure,
                const RunOwner& owner,
                bool has_experts);

  void on_step(const StepMetrics& metrics, bool is_last) override;

 private:
  MetricsFiles files_;
  SaveFailure on_failure_;
  const RunOwner& owner_;
};

}  // namespace dstrain
