// MetricsFile: one JSON line a step, in <output_dir>/metrics.jsonl, written by rank 0.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "kernels/core/device.h"

namespace dstrain {

/// What a rank holds of the memory that it computes in. On a GPU, what its process holds there; on
/// a CPU measured is the process's own memory, without the pages of files that it has
/// mapped: those are the system's cache, which it takes back when somebody needs the room, and of a
/// large data set they are more than everything else together.
struct RankMemory {
  std::int64_t planned_bytes = 0;   ///< the arena
  std::int64_t overhead_bytes = 0;  ///< expected beside it (library_overhead.h)
  std::int64_t measured_bytes = 0;  ///< now
  std::int64_t peak_bytes = 0;      ///< the most of it at any of the moments when it was looked at
  std::int64_t resident_peak_bytes = 0;  ///< the most ever by the kernel's count, mapped files too
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
  double checkpoint_seconds = 0.0;  ///< that training stood still for saves before this step
  bool saving = false;              ///< a save was being written beside this step
  double tokens_per_second = 0.0;
  double model_flops_per_second = 0.0;
  /// Share of what the ranks' devices can do by their maker's data sheet, where that is known.
  std::optional<double> model_flops_utilization;
  std::vector<RankMemory> memory;       ///< by rank
  std::vector<DeviceReadings> devices;  ///< by rank; none where devices are hosts
};

class MetricsFile {
 public:
  /// Continues after `resumed_step`: later lines, of a run that went on without saving, are
  /// dropped; step 0 starts a new file. Throws StorageError.
  MetricsFile(std::filesystem::path path, std::int64_t resumed_step);

  /// One line, flushed. Throws StorageError; the line then waits for the next call, which writes it
  /// first, and the file ends with its last whole line.
  void write(const StepMetrics& metrics);
  [[nodiscard]] bool has_unwritten() const { return !unwritten_.empty(); }

 private:
  std::filesystem::path path_;
  std::ofstream out_;
  std::uintmax_t written_bytes_ = 0;
  std::string unwritten_;
};

/// Resident memory of this process, from /proc/self/status. The kernel keeps a high-water mark of
/// everything together only, so whoever wants that of the process's own memory has to look often.
struct ResidentMemory {
  std::int64_t own_bytes = 0;   ///< now: RssAnon + RssShmem
  std::int64_t peak_bytes = 0;  ///< VmHWM: the most ever, mapped files included
};
ResidentMemory resident_memory();

}  // namespace dstrain
