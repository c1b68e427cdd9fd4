// How the bias moves that keeps experts busy without a loss (DeepSeek-V3, arXiv 2412.19437, §2.1.2;
// Wang et al. 2024, arXiv 2408.15664, algorithm 1).
#pragma once

#include <cstdint>
#include <numeric>
#include <span>

namespace dstrain {

/// b_e += rate · sign(mean load - load_e), loads being numbers of tokens.
inline void move_balancing_bias(std::span<float> bias_E,
                                std::span<const std::int64_t> loads_E,
                                float rate) {
  const auto total = std::accumulate(loads_E.begin(), loads_E.end(), std::int64_t{0});
  const auto experts = static_cast<std::int64_t>(loads_E.size());
  for (std::size_t expert = 0; expert < loads_E.size(); ++expert) {
    const std::int64_t load = experts * loads_E[expert];
    if (load < total) bias_E[expert] += rate;
    if (load > total) bias_E[expert] -= rate;
  }
}

}  // namespace dstrain
