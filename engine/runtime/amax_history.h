// AmaxHistory: the largest magnitude that a tensor had in each of the last steps, as far as a scale
// asks for it ("delayed scaling": the scale of a step comes from the steps before it, so that the
// tensor is read once). What counts of a magnitude is the power of two that makes it fit, and of
// the steps only those that no later one exceeds: a handful of numbers, however many steps.
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
  /// As peaks() gave them.
  explicit AmaxHistory(std::vector<AmaxPeak> peaks) : peaks_(std::move(peaks)) {}

  /// The next step, of which the last `length` (≥ 1) are kept. amax that is 0 or not finite says
  /// nothing of a scale.
  void add_step(float amax, float largest, std::int64_t length);
  /// Of the steps that are kept; none where none has said anything.
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
