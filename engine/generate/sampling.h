// Sampling: from logits to the next token. The distribution is softmax(logits / temperature), of
// which top_k and then top_p may keep the likely part; what is drawn is a function of (logits,
// rule, index), so that the same seed gives the same text.
#pragma once

#include <cstdint>
#include <span>

namespace dstrain {

struct SamplingRule {
  double temperature = 1.0;  ///< 0: the likeliest token, always
  std::int64_t top_k = 0;    ///< keeps so many of the likeliest; 0: all
  double top_p = 1.0;  ///< keeps the fewest likeliest ones that together have this probability
  std::uint64_t seed = 1234;
};

/// Returns the `index`-th token of the text. Of equally likely ones the lowest id wins. Throws
/// CheckpointError if a logit is not a number, as the weights are useless then.
std::int32_t choose_token(std::span<const float> logits,
                          const SamplingRule& rule,
                          std::int64_t index);

}  // namespace dstrain
