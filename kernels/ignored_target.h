// The target of a token that takes no part in the loss, such as a prompt's: cross-entropy gives it
// a loss of 0 and its logits a gradient of 0. The number is the one that PyTorch's cross_entropy
// has.
#pragma once

#include <cstdint>

namespace dstrain {

constexpr std::int32_t kIgnoredTarget = -100;

}  // namespace dstrain
