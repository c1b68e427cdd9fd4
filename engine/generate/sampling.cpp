#include "engine/generate/sampling.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <fmt/format.h>

#include "engine/checkpoint/checkpoint_error.h"
#include "kernels/core/check.h"
#include "kernels/math/philox.h"

namespace dstrain {
namespace {

struct Candidate {
  std::int32_t token;
  double weight;  ///< probability, up to a factor
};

bool likelier(const Candidate& a, const Candidate& b) {
  return a.weight != b.weight ? a.weight > b.weight : a.token < b.token;
}

double total_of(const std::vector<Candidate>& candidates) {
  double total = 0.0;
  for (const Candidate& candidate : candidates) {
    total += candidate.weight;
  }
  return total;
}

/// Returns candidates in the order of ids if all are kept, else the likeliest first.
std::vector<Candidate> candidates_of(std::span<const float> logits,
                                     float largest,
                                     const SamplingRule& rule) {
  std::vector<Candidate> candidates;
  candidates.reserve(logits.size());
  for (std::size_t token = 0; token < logits.size(); ++token) {
    const double distance = static_cast<double>(logits[token]) - static_cast<double>(largest);
    candidates.push_back({static_cast<std::int32_t>(token), std::exp(distance / rule.temperature)});
  }
  const auto k = static_cast<std::size_t>(rule.top_k);
  if (k > 0 && k < candidates.size()) {
    std::partial_sort(candidates.begin(), candidates.begin() + rule.top_k, candidates.end(),
                      likelier);
    candidates.resize(k);
  }
  if (rule.top_p < 1.0) {
    std::sort(candidates.begin(), candidates.end(), likelier);
    const double wanted = rule.top_p * total_of(candidates);
    double sum = 0.0;
    std::size_t kept = 0;
    while (kept < candidates.size() && (kept == 0 || sum < wanted)) {
      sum += candidates[kept++].weight;
    }
    candidates.resize(kept);
  }
  return candidates;
}

/// A number of 53 bits, uniform in [0, 1).
double uniform_at(std::uint64_t seed, std::int64_t index) {
  constexpr std::uint64_t kStream = 0x67656e6572617465;  // not one of those that initial values use
  const auto words = philox(seed, static_cast<std::uint64_t>(index), kStream);
  const std::uint64_t bits = (std::uint64_t{words[0]} << 32 | words[1]) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

}  // namespace

std::int32_t choose_token(std::span<const float> logits,
                          const SamplingRule& rule,
                          std::int64_t index) {
  check(!logits.empty() && rule.temperature >= 0.0 && rule.top_k >= 0 && rule.top_p > 0.0,
        "a token of {} at temperature {}, top_k {}, top_p {}", logits.size(), rule.temperature,
        rule.top_k, rule.top_p);
  const auto bad = std::find_if_not(logits.begin(), logits.end(),
                                    [](float logit) { return std::isfinite(logit); });
  if (bad != logits.end()) {
    throw CheckpointError(fmt::format(
        "the model's logit of token {} is {}: its weights are broken, or too large for the dtype",
        bad - logits.begin(), *bad));
  }
  const auto largest = std::max_element(logits.begin(), logits.end());  // the first of equals
  if (rule.temperature == 0.0) {
    return static_cast<std::int32_t>(largest - logits.begin());
  }
  const std::vector<Candidate> candidates = candidates_of(logits, *largest, rule);
  const double target = uniform_at(rule.seed, index) * total_of(candidates);
  double sum = 0.0;
  for (const Candidate& candidate : candidates) {
    sum += candidate.weight;
    if (target < sum) {
      return candidate.token;
    }
  }
  return candidates.back().token;  // rounding left the target at the very end
}

}  // namespace dstrain
