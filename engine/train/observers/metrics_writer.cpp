#include "engine/train/observers/metrics_writer.h"

#include <spdlog/spdlog.h>

#include "engine/checkpoint/checkpoint_error.h"

namespace dstrain {

MetricsWriter::MetricsWriter(const std::filesystem::path& folder,
                             std::int64_t resumed_step,
                             std::int64_t last_step,
                             SaveFailure on_failure,
                             const RunOwner& owner,
                             bool has_experts)
    : files_(folder, resumed_step, last_step, has_experts),
      on_failure_(on_failure),
      owner_(owner) {}

void MetricsWriter::on_step(const StepMetrics& metrics, bool is_last) {
  owner_.require();  // not only where a line is written: the next save may be far off
  const bool was_late = files_.has_unwritten();
  try {
    files_.write(metrics, is_last);
  } catch (const StorageError& error) {
    if (on_failure_ == SaveFailure::kStop || is_last) {
      throw;
    }
    if (!was_late) {
      spdlog::error("{}; the run continues, and the line is written once that is possible",
                    error.what());
    }
  }
}

}  // namespace dstrain
