// Draws against the distribution that the rule promises, worked out here by its definition.
#include "engine/generate/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/checkpoint/checkpoint_error.h"

namespace dstrain {
namespace {

const std::vector<float> kLogits{0.3F, 2.0F, -1.0F, 1.1F, 2.0F, -4.0F, 0.9F, 1.6F};

/// The probabilities by definition: a token is kept by the share of those as likely or likelier.
std::vector<double> probabilities(const SamplingRule& rule) {
  std::vector<double> p;
  for (const float logit : kLogits) {
    p.push_back(std::exp(static_cast<double>(logit) / rule.temperature));
  }
  std::vector<std::size_t> order(p.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return p[a] > p[b]; });
  if (rule.top_k > 0) {
    for (std::size_t i = static_cast<std::size_t>(rule.top_k); i < order.size(); ++i) {
      p[order[i]] = 0.0;
    }
  }
  const double kept_by_k = std::accumulate(p.begin(), p.end(), 0.0);
  double before = 0.0;  // probability of all likelier ones
  for (const std::size_t token : order) {
    const double own = p[token] / kept_by_k;
    if (before >= rule.top_p) {
      p[token] = 0.0;
    }
    before += own;
  }
  const double total = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& value : p) {
    value /= total;
  }
  return p;
}

std::vector<std::int64_t> draw(const SamplingRule& rule, std::int64_t draws) {
  std::vector<std::int64_t> counts(kLogits.size());
  for (std::int64_t index = 0; index < draws; ++index) {
    ++counts.at(static_cast<std::size_t>(choose_token(kLogits, rule, index)));
  }
  return counts;
}

}  // namespace

TEST_CASE("draws follow softmax with temperature, top_k and top_p", "[generate][sampling]") {
  const auto rule = GENERATE(SamplingRule{}, SamplingRule{.temperature = 0.5},
                             SamplingRule{.temperature = 1.7, .seed = 5}, SamplingRule{.top_k = 3},
                             SamplingRule{.top_p = 0.7},
                             SamplingRule{.temperature = 1.3, .top_k = 5, .top_p = 0.8, .seed = 9},
                             SamplingRule{.top_k = 100});
  CAPTURE(rule.temperature, rule.top_k, rule.top_p);
  constexpr std::int64_t kDraws = 40'000;
  const std::vector<double> expected = probabilities(rule);
  const std::vector<std::int64_t> counts = draw(rule, kDraws);
  double chi_square = 0.0;
  int kept = 0;
  for (std::size_t token = 0; token < counts.size(); ++token) {
    CAPTURE(token, counts[token], expected[token]);
    if (expected[token] == 0.0) {
      CHECK(counts[token] == 0);
      continue;
    }
    ++kept;
    const double mean = expected[token] * kDraws;
    chi_square += std::pow(static_cast<double>(counts[token]) - mean, 2) / mean;
  }
  // Mean and variance of chi-square with f degrees of freedom are f and 2f; beyond 4 deviations
  // lies less than one seed in a thousand.
  const double freedom = kept - 1;
  CHECK(chi_square < freedom + 4.0 * std::sqrt(2.0 * freedom));
  CHECK(chi_square > 0.0);
}

TEST_CASE("a rule keeps the tokens that it should", "[generate][sampling]") {
  const auto kept = [](const SamplingRule& rule) {
    std::string tokens;
    const std::vector<std::int64_t> counts = draw(rule, 4'000);
    for (std::size_t token = 0; token < counts.size(); ++token) {
      tokens += counts[token] > 0 ? std::to_string(token) : "";
    }
    return tokens;
  };
  CHECK(kept({.top_k = 1}) == "1");  // of two equals the first
  CHECK(kept({.top_k = 2}) == "14");
  CHECK(kept({.top_k = 3}) == "147");
  CHECK(kept({.top_p = 1e-9}) == "1");
  CHECK(kept({.temperature = 0.01}) == "14");
}

TEST_CASE("temperature 0 takes the first of the likeliest", "[generate][sampling]") {
  for (std::int64_t index = 0; index < 20; ++index) {
    CHECK(choose_token(kLogits, {.temperature = 0.0, .seed = 77}, index) == 1);
  }
}

TEST_CASE("the same seed draws the same tokens, another seed others", "[generate][sampling]") {
  const auto tokens = [](std::uint64_t seed) {
    std::vector<std::int32_t> drawn;
    for (std::int64_t index = 0; index < 200; ++index) {
      drawn.push_back(choose_token(kLogits, {.seed = seed}, index));
    }
    return drawn;
  };
  CHECK(tokens(1) == tokens(1));
  CHECK(tokens(1) != tokens(2));
}

TEST_CASE("logits that are no numbers are the checkpoint's fault", "[generate][sampling]") {
  std::vector<float> logits = kLogits;
  logits[3] = std::numeric_limits<float>::quiet_NaN();
  CHECK_THROWS_AS(choose_token(logits, {}, 0), CheckpointError);
  CHECK_THROWS_WITH(choose_token(logits, {.temperature = 0.0}, 0),
                    Catch::Contains("logit of token 3 is nan"));
}

}  // namespace dstrain
