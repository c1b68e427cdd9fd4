// DropoutConfig: what training sets to zero at random (kernels/math/dropout.h). Each family spells
// its keys in its own way (arch/family.h).
#pragma once

namespace dstrain {

/// Probabilities of an element, in [0, 1).
struct DropoutConfig {
  float embedding = 0.0F;  ///< of what the first block reads
  float residual = 0.0F;   ///< of what each half of a block adds to the residual stream
  float attention = 0.0F;  ///< of attention's probabilities

  [[nodiscard]] bool any() const { return embedding > 0.0F || residual > 0.0F || attention > 0.0F; }
  bool operator==(const DropoutConfig&) const = default;
};

}  // namespace dstrain
