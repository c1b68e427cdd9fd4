// AmaxHistory: the largest magnitude that a tensor had in each of the last steps, as far as a scale
// needs it ("delayed scaling": the scale of a step comes from the steps before it, so that the
// tensor is read once). Only the power of two that makes a magnitude fit counts, and only the steps
// that no later one exceeds: a handful of numbers, however many steps.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <vector>

namespace dstrain {

/// A step `age` steps ago, 0 the last one, whose largest magnitude was at most `largest` ·
/// 2^exponent of the format that the tensor is converted to, and more than half of that.
struct AmaxPeak {
  std::int64_t age = 0;
  std::int32_t exponent = 0;

  friend auto operator<=>(const AmaxPeak&, const AmaxPeak&) = default;
};

class AmaxHistory {
 public:
  AmaxHistory() = default;
  /// Takes peaks as peaks() gave them.
  explicit AmaxHistory(std::vector<AmaxPeak> peaks) : peaks_(std::move(peaks)) {}

  /// Adds a step; the last `length` (≥ 1) are kept. An amax that is 0 or not finite does not affect
  /// the scale.
  void add_step(float amax, float largest, std::int64_t length);
  /// The exponent that fits all steps that are kept; nothing where none of them counts.
  [[nodiscard]] std::optional<std::int32_t> exponent() const;
  /// The oldest first, ages and exponents falling.
  [[nodiscard]] const std::vector<AmaxPeak>& peaks() const { return peaks_; }

  /// The least e with amax ≤ largest · 2^e, and that of the format's f32 numbers that bf16 holds
  /// as well: between -100 and 100. amax > 0, finite.
  [[nodiscard]] static std::int32_t exponent_of(float amax, float largest);

 private:
  std::vector<AmaxPeak> peaks_;
};

}  // namespace dstrain
