// Probabilities of tokens against softmax by its definition, and the order in which they are named.
#include "engine/generate/log_probabilities.h"

#include <cmath>
#include <vector>

#include <catch2/catch.hpp>

namespace dstrain {
namespace {

const std::vector<float> kLogits{0.3F, 2.0F, -1.0F, 1.1F, 2.0F, 200.0F, -400.0F};

double by_definition(std::size_t token) {
  long double sum = 0.0L;
  for (const float logit : kLogits) {
    sum += std::exp(static_cast<long double>(logit));
  }
  return static_cast<double>(static_cast<long double>(kLogits[token]) - std::log(sum));
}

TEST_CASE("log probabilities are those of softmax, likeliest first", "[generate]") {
  const LogProbabilities found = log_probabilities(kLogits, 2, 4);
  CHECK(found.chosen == Approx(by_definition(2)).epsilon(1e-12));
  REQUIRE(found.likeliest.size() == 4);
  const std::vector<std::int32_t> order{5, 1, 4, 3};  // of equals the lower id first
  for (std::size_t i = 0; i < order.size(); ++i) {
    CHECK(found.likeliest[i].token == order[i]);
    CHECK(found.likeliest[i].log_probability ==
          Approx(by_definition(static_cast<std::size_t>(order[i]))).epsilon(1e-12).margin(1e-12));
  }
}

TEST_CASE("more tokens than there are give all, and none gives none", "[generate]") {
  CHECK(log_probabilities(kLogits, 0, 100).likeliest.size() == kLogits.size());
  CHECK(log_probabilities(kLogits, 0, 0).likeliest.empty());
}

}  // namespace
}  // namespace dstrain
