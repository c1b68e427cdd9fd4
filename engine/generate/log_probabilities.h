// LogProbabilities: how likely a model found a token, and which others.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace dstrain {

struct TokenLikelihood {
  std::int32_t token = 0;
  double log_probability = 0.0;  ///< natural
};

struct LogProbabilities {
  double chosen = 0.0;                     ///< of the token that was chosen
  std::vector<TokenLikelihood> likeliest;  ///< of all tokens, likeliest first
};

/// Computes them from softmax(logits_V), before any temperature. `count` is the number of likeliest
/// tokens to name, at most all.
LogProbabilities log_probabilities(std::span<const float> logits_V,
                                   std::int32_t chosen,
                                   std::int64_t count);

}  // namespace dstrain
