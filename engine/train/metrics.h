// MetricsFile: one JSON line a step, in <output_dir>/metrics.jsonl, written by rank 0.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <vector>

namespace dstrain {

struct RankMemory {
  std::int64_t planned_bytes = 0;   ///< the arena
  std::int64_t measured_bytes = 0;  ///< resident memory of the process, now
  std::int64_t peak_bytes = 0;      ///< the most it ever was
};

struct StepMetrics {
  std::int64_t step = 0;    ///< optimizer steps done
  std::int64_t tokens = 0;  ///< seen since step 0
  double loss = 0.0;        ///< mean over the step's tokens, nats
  std::optional<double> validation_loss;
  double learning_rate = 0.0;
  double grad_norm = 0.0;
  double loss_scale = 1.0;
  bool skipped = false;  ///< gradients were not finite: nothing was updated
  double step_seconds = 0.0;
  double tokens_per_second = 0.0;
  double model_flops_per_second = 0.0;
  std::vector<RankMemory> memory;  ///< by rank
};

class MetricsFile {
 public:
  /// Continues after `resumed_step`: later lines, of a run that went on without saving, are
  /// dropped; step 0 starts a new file. Throws StorageError.
  MetricsFile(std::filesystem::path path, std::int64_t resumed_step);

  /// One line, flushed.
  void write(const StepMetrics& metrics);

 private:
  std::filesystem::path path_;
  std::ofstream out_;
};

/// Resident memory of this process, now and at its most, from /proc/self/status.
struct ResidentMemory {
  std::int64_t now_bytes = 0;
  std::int64_t peak_bytes = 0;
};
ResidentMemory resident_memory();

}  // namespace dstrain
