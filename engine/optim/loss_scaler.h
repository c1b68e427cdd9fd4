// LossScaler: the factor that the loss of an fp16 run is multiplied by, so that small gradients do
// not vanish. A dynamic scale halves where gradients overflow and doubles after a window of clean
// steps, exactly as DeepSpeed's two scalers do. The one of ZeRO stages 1 to 3 forgives its first
// overflow (hysteresis) and gives up at the minimum; the one of stage 0 does neither. DeepSpeed
// moves the scale before it divides the gradients by it, so that the step that doubles it uses half
// the gradients. That is not copied here: they are divided by what the loss was multiplied by.
#pragma once

#include <cstdint>

#include "engine/config/number_formats.h"

namespace dstrain {

/// Everything that changes, which a checkpoint keeps.
struct LossScalerState {
  double scale = 1.0;
  std::int64_t iteration = 0;       ///< steps seen, skipped ones too
  std::int64_t last_overflow = -1;  ///< the iteration of the last overflow
  std::int64_t hysteresis = 0;      ///< at 1 the next overflow halves the scale

  bool operator==(const LossScalerState&) const = default;
};

/// kAtMinimum: the gradients overflow at the smallest scale allowed, and the run cannot continue.
enum class ScaleOutcome : std::uint8_t { kOk, kAtMinimum };

class LossScaler {
 public:
  /// `states_are_cut` is true in ZeRO stages 1 to 3.
  LossScaler(const LossScaleConfig& config, bool states_are_cut);

  [[nodiscard]] double scale() const { return state_.scale; }
  /// Called after every step, skipped or not. The result is the same on all ranks, if `overflow`
  /// is.
  [[nodiscard]] ScaleOutcome after_step(bool overflow);

  [[nodiscard]] const LossScalerState& state() const { return state_; }
  /// Resumes where a checkpoint stopped. A static scale stays the config's, and so does the first
  /// scale if the checkpoint's run had none (scale 0).
  void restore(const LossScalerState& state);

 private:
  [[nodiscard]] bool is_dynamic() const { return config_.static_scale == 0.0; }
  [[nodiscard]] ScaleOutcome after_overflow();
  void after_clean_step();

  LossScaleConfig config_;
  bool forgives_;
  LossScalerState state_;
};

}  // namespace dstrain
