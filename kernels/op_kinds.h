// The enumerations that operations take, for code that names them without using a device.
#pragma once

#include <cstdint>

namespace dstrain {

/// kLayerNorm: Ba et al. 2016, (x - mean) / sqrt(var + eps) * weight + bias.
/// kRmsNorm: Zhang & Sennrich 2019, x / sqrt(mean(x²) + eps) * weight; has no bias.
/// kRmsNormFromOne: the same times (1 + weight), in f32 (Gemma 2024): its weight starts at 0.
enum class NormKind : std::uint8_t { kLayerNorm, kRmsNorm, kRmsNormFromOne };

/// Gives the number that a norm adds to its weight before it multiplies by it.
constexpr float weight_offset(NormKind kind) {
  return kind == NormKind::kRmsNormFromOne ? 1.0F : 0.0F;
}

/// Whether an output is overwritten or added to.
enum class Write : std::uint8_t { kOverwrite, kAdd };

enum class Pass : std::uint8_t { kForward, kBackward };

/// It is defined where its formulas are, in math/activation.h: adding one edits only that file. Its
/// first, 0, is SiLU.
enum class ActivationKind : std::uint8_t;

/// What a feed-forward makes of gate and up: act(gate) · up; or, with a limit, g · σ(1.702 g) ·
/// (u + 1) of g = min(gate, limit) and u = up within ± limit, whatever the kind (gpt-oss; formulas
/// in math/gated.h).
struct GatedActivation {
  // NOLINTNEXTLINE(google-explicit-constructor): most have no limit
  GatedActivation(ActivationKind activation, float limit_of_both = 0.0F)
      : kind(activation), limit(limit_of_both) {}

  ActivationKind kind;
  float limit;  ///< 0: none
};

}  // namespace dstrain
