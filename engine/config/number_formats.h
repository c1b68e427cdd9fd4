// The number formats of a run, as the user wrote them: part of config.h.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/core/dtype.h"

namespace dstrain {

/// The format that the model computes in. kF16 scales the loss (LossScaleConfig).
enum class Precision : std::uint8_t { kF32, kBF16, kF16 };

/// The formats that "auto" leaves to the machine: bf16, or else fp16. After resolve_config none is
/// left open.
struct OpenPrecision {
  bool bf16 = false;
  bool f16 = false;

  bool operator==(const OpenPrecision&) const = default;
};

constexpr DType dtype_of(Precision precision) {
  switch (precision) {
    case Precision::kF32:
      return DType::kF32;
    case Precision::kBF16:
      return DType::kBF16;
    case Precision::kF16:
      return DType::kF16;
  }
  return DType::kF32;
}

/// "fp16": DeepSpeed's loss scaling.
struct LossScaleConfig {
  double static_scale = 0.0;              ///< loss_scale; 0: dynamic
  std::int64_t initial_scale_power = 16;  ///< the first dynamic scale is 2 to this power
  std::int64_t window = 1000;             ///< loss_scale_window: clean steps before it doubles
  std::int64_t hysteresis = 2;            ///< overflows before it halves (ZeRO stages 1 to 3)
  bool consecutive_hysteresis = false;    ///< a clean step restores the hysteresis
  double min_scale = 1.0;                 ///< min_loss_scale

  bool operator==(const LossScaleConfig&) const = default;
};

/// Number formats other than the one that the model computes in.
struct FormatConfig {
  /// data_types.grad_accum_dtype: f32, or the compute dtype. Absent: f32.
  std::optional<DType> grad_accum;
  /// communication_data_type: the dtype of gradients on the wire. Absent: as grad_accum.
  std::optional<DType> communication;
  /// bf16.bf16_optimizer_states: moments in bf16, rounded stochastically.
  bool bf16_optimizer_states = false;
  /// bf16.bf16_master_weights_and_grads: no f32 copy of the parameters; the bf16 ones are updated
  /// with stochastic rounding. Gradients are accumulated in bf16.
  bool bf16_master = false;
  bool prescale_gradients = false;         ///< divide by the ranks before summing, not after
  double gradient_predivide_factor = 1.0;  ///< divided by before the sum, given back after it

  bool operator==(const FormatConfig&) const = default;
};

/// "fp8": the products of the blocks' linear layers in 8 bits, beside bf16 or fp32.
struct Fp8Config {
  bool enabled = false;
  /// amax_history_len: the number of steps whose largest magnitudes a scale comes from.
  std::int64_t amax_history = 1024;
  std::int64_t margin = 0;  ///< scales are 2^margin times what those ask for

  bool operator==(const Fp8Config&) const = default;
};

}  // namespace dstrain
