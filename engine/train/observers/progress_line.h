// ProgressLine: shows the progress of a run to the person who started it. On a terminal it is a
// live line at every step (it ends in '\r', which the launcher keeps at the bottom of the screen;
// two spaces between what may be left out); elsewhere a plain line every few steps.
#pragma once

#include <chrono>
#include <cstdint>

#include "engine/train/observers/run_observer.h"
#include "engine/train/train_options.h"

namespace dstrain {

class ProgressLine final : public RunObserver {
 public:
  ProgressLine(Progress kind,
               std::int64_t first_step,
               std::int64_t total_steps,
               std::int64_t steps_per_line);
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  /// Clears the live line, so that what comes next stands on an empty one.
  ~ProgressLine() override;

  void on_step(const StepMetrics& metrics, bool is_last) override;

 private:
  void show(const StepMetrics& metrics);
  [[nodiscard]] double seconds_left(std::int64_t step) const;

  Progress kind_;
  std::int64_t first_step_;
  std::int64_t total_steps_;
  std::int64_t steps_per_line_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point last_shown_{};
  bool is_drawn_ = false;  ///< on a terminal of our own
};

}  // namespace dstrain
