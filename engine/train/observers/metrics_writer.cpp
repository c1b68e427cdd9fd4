#include "engine/train/observers/metrics_writer.h"

#include <utility>

#include <spdlog/spdlog.h>

#include "engine/checkpoint/checkpoint_error.h"

namespace dstrain {

MetricsWriter::MetricsWriter(std::vector<std::unique_ptr<StepRecords>> records,
                             SaveFailure on_failure,
                             const RunOwner& owner)
    : records_(std::move(records)), on_failure_(on_failure), owner_(owner) {}

void MetricsWriter::on_step(const StepMetrics& metrics, bool is_last) {
  owner_.require();  // not only where something is written: the next save may be far off
  for (const auto& records : records_) {
    const bool was_late = records->has_unwritten();
    try {
      records->write(metrics, is_last);
    } catch (const StorageError& error) {
      if (on_failure_ == SaveFailure::kStop || is_last) {
        throw;
      }
      if (!was_late) {
        spdlog::error("{}; the run continues, and the step is written once that is possible",
                      error.what());
      }
    }
  }
}

}  // namespace dstrain
