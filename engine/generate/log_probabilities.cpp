#include "engine/generate/log_probabilities.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace dstrain {

LogProbabilities log_probabilities(std::span<const float> logits_V,
                                   std::int32_t chosen,
                                   std::int64_t count) {
  const auto logit = [&](std::int32_t token) {
    return static_cast<double>(logits_V[static_cast<std::size_t>(token)]);
  };
  const auto largest = static_cast<double>(*std::max_element(logits_V.begin(), logits_V.end()));
  double sum = 0.0;
  for (const float value : logits_V) {
    sum += std::exp(static_cast<double>(value) - largest);
  }
  const double log_sum = largest + std::log(sum);
  std::vector<std::int32_t> tokens(logits_V.size());
  std::iota(tokens.begin(), tokens.end(), 0);
  const auto end = tokens.begin() + std::min(count, static_cast<std::int64_t>(tokens.size()));
  std::partial_sort(tokens.begin(), end, tokens.end(), [&](std::int32_t a, std::int32_t b) {
    return logit(a) != logit(b) ? logit(a) > logit(b) : a < b;
  });
  LogProbabilities result{.chosen = logit(chosen) - log_sum, .likeliest = {}};
  std::for_each(tokens.begin(), end, [&](std::int32_t token) {
    result.likeliest.push_back({token, logit(token) - log_sum});
  });
  return result;
}

}  // namespace dstrain
