// LogitGradient: what the gradient of a loss by its logits is multiplied with.
#pragma once

namespace dstrain {

struct LogitGradient {
  float scale;
  /// Where soft_cap has made the logits, the gradient is that of what it was given: also times
  /// 1 - (logit / cap)². 0: the logits are as they were computed.
  float cap = 0.0F;
};

}  // namespace dstrain
