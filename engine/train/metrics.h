// The metrics that a run writes about its steps in <output_dir>, by rank 0, one JSON object a line:
//
//   metrics.jsonl   a line a step: what does not grow with the ranks
//   ranks.jsonl     memory and devices of every rank: the first step, a hundredth of the run apart,
//                   and the last step. About 60 bytes a rank and line on CPUs: of 3072 ranks and
//                   any number of steps not 20 MB, where a line a step would make 13 GB of 71,500
//                   steps
//   experts.jsonl   of a mixture of experts, what each expert of each layer had to do; as often
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/parallel/offloaded_update.h"
#include "engine/train/routing_report.h"
#include "engine/train/step_lines.h"
#include "kernels/core/device.h"

namespace dstrain {

/// The amount that a rank holds of the memory that it computes in. On a GPU, that is what its
/// process holds there; on a CPU, the process's own memory is measured, without the pages of files
/// that it has mapped: those are the system's cache, which it reclaims when memory is needed, and
/// for a large data set they are more than everything else together.
struct RankMemory {
  std::int64_t planned_bytes = 0;   ///< the arena
  std::int64_t overhead_bytes = 0;  ///< expected beside it (library_overhead.h)
  std::int64_t measured_bytes = 0;  ///< now
  std::int64_t peak_bytes = 0;      ///< the most of it at any of the moments when it was looked at
  std::int64_t resident_peak_bytes = 0;  ///< the most ever by the kernel's count, mapped files too
};

/// The seconds of a step on rank 0's host, by phase. A GPU works behind the host: there they say
/// when work was enqueued, and the wait for it is in the phase that needs a result.
struct PhaseSeconds {
  double data = 0.0;
  double forward = 0.0;
  double backward = 0.0;
  double optimizer = 0.0;
  /// The part of all these, and of agreeing on the loss, spent waiting for other ranks. Absent: not
  /// counted.
  std::optional<double> communication;
};

struct StepMetrics {
  std::int64_t step = 0;             ///< optimizer steps done
  std::int64_t batch_size = 0;       ///< sequences of the step
  std::int64_t sequence_length = 0;  ///< their tokens
  std::int64_t tokens = 0;           ///< seen since step 0
  double loss = 0.0;                 ///< mean over the step's tokens, nats
  std::optional<double> validation_loss;
  double learning_rate = 0.0;
  double grad_norm = 0.0;
  double loss_scale = 1.0;
  std::vector<LayerRouting> routing{};  ///< by layer with experts
  bool skipped = false;                 ///< gradients were not finite: nothing was updated
  double step_seconds = 0.0;
  PhaseSeconds phases;
  double evaluation_seconds = 0.0;         ///< after the step, where there was one
  double checkpoint_seconds = 0.0;         ///< that training stood still for saves before this step
  bool saving = false;                     ///< a save was being written during this step
  std::optional<OffloadedUpdate> offload;  ///< rank 0's last one that had ended
  double tokens_per_second = 0.0;
  double model_flops_per_second = 0.0;
  /// The share of what the ranks' devices can do according to their data sheet, where that is
  /// known.
  std::optional<double> model_flops_utilization;
  std::vector<RankMemory> memory;       ///< by rank
  std::vector<DeviceReadings> devices;  ///< by rank; none where devices are hosts
};

/// The files.
class MetricsFiles {
 public:
  /// Opens them in `folder`, for a run that continues after `resumed_step` until `last_step`; that
  /// of experts where the model has some. Throws StorageError.
  MetricsFiles(const std::filesystem::path& folder,
               std::int64_t resumed_step,
               std::int64_t last_step,
               bool has_experts = false);

  /// Writes a step's lines; `is_last` says that no step follows. Throws StorageError, after which
  /// the lines wait for the next call (StepLines).
  void write(const StepMetrics& metrics, bool is_last);
  [[nodiscard]] bool has_unwritten() const {
    return steps_.has_unwritten() || ranks_.has_unwritten() ||
           (experts_ && experts_->has_unwritten());
  }

 private:
  StepLines steps_;
  StepLines ranks_;
  std::optional<StepLines> experts_;
  std::int64_t first_step_;
  std::int64_t ranks_interval_;
};

/// A line of metrics.jsonl, of ranks.jsonl and of experts.jsonl. `now` is when the step, and an
/// evaluation after it, ended.
std::string metrics_line(const StepMetrics& metrics, std::chrono::system_clock::time_point now);
std::string ranks_line(const StepMetrics& metrics, std::chrono::system_clock::time_point now);
std::string experts_line(const StepMetrics& metrics, std::chrono::system_clock::time_point now);

/// The rank that held most at any moment. `by_rank` is not empty.
std::size_t fullest_rank(const std::vector<RankMemory>& by_rank);

/// Resident memory of this process, from /proc/self/status. The kernel keeps a high-water mark only
/// of everything together, so that of the process's own memory has to be found by sampling often.
struct ResidentMemory {
  std::int64_t own_bytes = 0;   ///< now: RssAnon + RssShmem
  std::int64_t peak_bytes = 0;  ///< VmHWM: the most ever, mapped files included
};
ResidentMemory resident_memory();

}  // namespace dstrain
