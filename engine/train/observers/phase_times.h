// Logs how a step's time was spent, every few steps (wall_clock_breakdown).
#pragma once

#include <cstdint>

#include <spdlog/spdlog.h>

#include "engine/train/observers/run_observer.h"

namespace dstrain {

class PhaseTimes final : public RunObserver {
 public:
  explicit PhaseTimes(std::int64_t steps_per_line) : steps_per_line_(steps_per_line) {}

  void on_step(const StepMetrics& metrics, bool /*is_last*/) override {
    if (metrics.step % steps_per_line_ == 0) {
      const PhaseSeconds& seconds = metrics.phases;
      spdlog::info("step {} ms: data {:.1f}  forward {:.1f}  backward {:.1f}  optimizer {:.1f}",
                   metrics.step, seconds.data * 1e3, seconds.forward * 1e3, seconds.backward * 1e3,
                   seconds.optimizer * 1e3);
    }
  }

 private:
  std::int64_t steps_per_line_;
};

}  // namespace dstrain
