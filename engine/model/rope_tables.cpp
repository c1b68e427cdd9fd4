#include "engine/model/rope_tables.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace dstrain {
namespace {

/// Llama 3.1: long wavelengths are stretched by `factor`, short ones kept, those between blended.
double llama3_frequency(const RopeScaling& scaling, double frequency) {
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  const auto original = static_cast<double>(scaling.original_max_positions);
  if (wavelength > original / scaling.low_frequency_factor) {
    return frequency / scaling.factor;
  }
  if (wavelength < original / scaling.high_frequency_factor) {
    return frequency;
  }
  const double smooth = (original / wavelength - scaling.low_frequency_factor) /
                        (scaling.high_frequency_factor - scaling.low_frequency_factor);
  return (1.0 - smooth) * frequency / scaling.factor + smooth * frequency;
}

/// The fractional index of the pair that turns `rotations` times within the original positions.
double pair_with_rotations(const RotarySpec& rotary, double rotations) {
  const auto original = static_cast<double>(rotary.scaling.original_max_positions);
  return static_cast<double>(rotary.dims) *
         std::log(original / (rotations * 2.0 * std::numbers::pi)) / (2.0 * std::log(rotary.theta));
}

/// Peng et al. 2023, §3.2: pairs that turn often are kept, those that turn seldom are stretched,
/// with a ramp between them.
double yarn_frequency(const RotarySpec& rotary, std::int64_t pair, double frequency) {
  const RopeScaling& scaling = rotary.scaling;
  double first = pair_with_rotations(rotary, scaling.fast_rotations);
  double last = pair_with_rotations(rotary, scaling.slow_rotations);
  if (scaling.whole_pairs) {
    first = std::floor(first);
    last = std::ceil(last);
  }
  first = std::max(first, 0.0);
  last = std::min(last, static_cast<double>(rotary.dims - 1));
  constexpr double kNarrowest = 0.001;
  const double width = first == last ? kNarrowest : last - first;
  const double stretched = std::clamp((static_cast<double>(pair) - first) / width, 0.0, 1.0);
  return frequency * (1.0 - stretched) + frequency / scaling.factor * stretched;
}

/// Ding et al. 2024, "LongRoPE", eq. 4. Each step is rounded to f32 where Hugging Face rounds it:
/// 100,000 positions from the first the angle is that much larger, and so is what rounding did.
double longrope_frequency(const RotarySpec& rotary, std::int64_t pair, std::int64_t text_tokens) {
  const RopeScaling& scaling = rotary.scaling;
  const auto& factors = scaling.is_long(text_tokens) ? scaling.long_factors : scaling.short_factors;
  const float exponent = static_cast<float>(2 * pair) / static_cast<float>(rotary.dims);
  const auto wavelength = static_cast<float>(std::pow(rotary.theta, exponent));
  return 1.0F / (static_cast<float>(factors.at(static_cast<std::size_t>(pair))) * wavelength);
}

double stretched_frequency(const RotarySpec& rotary,
                           std::int64_t pair,
                           std::int64_t text_tokens,
                           double frequency) {
  switch (rotary.scaling.kind) {
    case RopeScalingKind::kNone:
      return frequency;
    case RopeScalingKind::kLinear:
      return frequency / rotary.scaling.factor;
    case RopeScalingKind::kLlama3:
      return llama3_frequency(rotary.scaling, frequency);
    case RopeScalingKind::kYarn:
      return yarn_frequency(rotary, pair, frequency);
    case RopeScalingKind::kLongRope:
      return longrope_frequency(rotary, pair, text_tokens);
  }
  return frequency;
}

}  // namespace

std::vector<double> rope_frequencies(const RotarySpec& rotary, std::int64_t text_tokens) {
  std::vector<double> frequencies;
  for (std::int64_t pair = 0; pair < rotary.dims / 2; ++pair) {
    const double frequency =
        std::pow(rotary.theta, -2.0 * static_cast<double>(pair) / static_cast<double>(rotary.dims));
    frequencies.push_back(stretched_frequency(rotary, pair, text_tokens, frequency));
  }
  return frequencies;
}

RopeTables rope_tables(const RotarySpec& rotary, std::int64_t positions, std::int64_t text_tokens) {
  RopeTables tables;
  const std::vector<double> frequencies = rope_frequencies(rotary, text_tokens);
  const auto size = static_cast<float>(rotary.scaling.attention_factor);
  for (std::int64_t position = 0; position < positions; ++position) {
    for (const double frequency : frequencies) {
      // Hugging Face multiplies in f32 too; the table then agrees to the last bit or two.
      const float angle = static_cast<float>(position) * static_cast<float>(frequency);
      tables.cosine.push_back(std::cos(angle) * size);
      tables.sine.push_back(std::sin(angle) * size);
    }
  }
  return tables;
}

}  // namespace dstrain
