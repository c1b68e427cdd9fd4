// Reports phases and steps to the ActivityRecorder, and with it to the process that watches this
// rank from outside.
#pragma once

#include "engine/train/observers/run_observer.h"

namespace dstrain {

class ActivityTeller final : public RunObserver {
 public:
  /// `recorder` outlives it.
  explicit ActivityTeller(ActivityRecorder& recorder) : recorder_(recorder) {}

  void on_phase(RunPhase phase) noexcept override { recorder_.begin_phase(phase); }
  void on_step(const StepMetrics& metrics, bool /*is_last*/) override {
    recorder_.finish_step(metrics.step);
  }

 private:
  ActivityRecorder& recorder_;
};

}  // namespace dstrain
