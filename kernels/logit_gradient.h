// LogitGradient: the factors that the gradient of a loss by its logits is multiplied by.
#pragma once

namespace dstrain {

struct LogitGradient {
  float scale;
  /// Where soft_cap has made the logits, the gradient is the one by soft_cap's input: also times 1
  /// - (logit / cap)². 0: the logits are as they were computed.
  float cap = 0.0F;
};

}  // namespace dstrain
