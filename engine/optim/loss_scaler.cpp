#include "engine/optim/loss_scaler.h"

#include <algorithm>
#include <cmath>

#include "kernels/core/check.h"

namespace dstrain {

LossScaler::LossScaler(const LossScaleConfig& config, bool states_are_cut)
    : config_(config), forgives_(states_are_cut) {
  check(config.window > 0 && config.hysteresis > 0, "loss scale: window {}, hysteresis {}",
        config.window, config.hysteresis);
  state_.scale = is_dynamic() ? std::ldexp(1.0, static_cast<int>(config.initial_scale_power))
                              : config.static_scale;
  state_.hysteresis = config.hysteresis;
}

void LossScaler::restore(const LossScalerState& state) {
  if (is_dynamic() && state.scale > 0.0) {
    state_ = state;
    // The state may come from a scaler without hysteresis, such as DeepSpeed's in stage 0.
    state_.hysteresis = state.hysteresis > 0 ? state.hysteresis : config_.hysteresis;
  }
}

ScaleOutcome LossScaler::after_step(bool overflow) {
  if (!is_dynamic()) {
    return ScaleOutcome::kOk;
  }
  if (!overflow) {
    after_clean_step();
  } else if (after_overflow() == ScaleOutcome::kAtMinimum) {
    return ScaleOutcome::kAtMinimum;
  }
  ++state_.iteration;
  return ScaleOutcome::kOk;
}

ScaleOutcome LossScaler::after_overflow() {
  if (forgives_ && config_.hysteresis > 1 && state_.hysteresis > 1) {
    --state_.hysteresis;
  } else {
    if (forgives_ && state_.scale == config_.min_scale) {
      return ScaleOutcome::kAtMinimum;
    }
    state_.scale = std::max(state_.scale / 2.0, config_.min_scale);
  }
  state_.last_overflow = state_.iteration;
  return ScaleOutcome::kOk;
}

/// With last_overflow -1 the first doubling comes one step late, after window + 1, as in DeepSpeed.
void LossScaler::after_clean_step() {
  if (config_.consecutive_hysteresis) {
    state_.hysteresis = config_.hysteresis;
  }
  const std::int64_t clean_steps_before = state_.iteration - state_.last_overflow - 1;
  if (clean_steps_before > 0 && clean_steps_before % config_.window == 0) {
    state_.hysteresis = config_.hysteresis;
    state_.scale *= 2.0;
  }
}

}  // namespace dstrain
