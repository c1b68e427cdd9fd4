#include "engine/data/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/config/config_error.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

std::vector<std::int64_t> indices(const Sampler& sampler, std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> all;
  for (std::int64_t k = first; k < first + count; ++k) {
    all.push_back(sampler.draw(k).index);
  }
  return all;
}

TEST_CASE("an epoch visits each sequence of a source exactly once", "[data][sampler]") {
  for (const std::int64_t sequences : {1, 2, 7, 1000}) {
    const Sampler sampler({sequences}, {1.0}, 42);
    REQUIRE(sampler.sequences_per_epoch() == sequences);
    for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
      auto seen = indices(sampler, epoch * sequences, sequences);
      std::sort(seen.begin(), seen.end());
      for (std::int64_t index = 0; index < sequences; ++index) {
        REQUIRE(seen[static_cast<std::size_t>(index)] == index);
      }
    }
  }
}

TEST_CASE("epochs are counted source by source", "[data][sampler]") {
  const Sampler sampler({100, 50, 10}, {1.0, 2.0, 0.25}, 7);
  const std::vector<double> sequences{100, 50, 10};
  std::vector<double> taken(3, 0.0);
  for (std::int64_t k = 0; k < 500; ++k) {
    const std::vector<double> epochs = sampler.epochs(k);
    for (std::size_t s = 0; s < 3; ++s) {
      REQUIRE(epochs[s] == taken[s] / sequences[s]);
    }
    taken[static_cast<std::size_t>(sampler.draw(k).source)] += 1.0;
  }
  CHECK(Sampler({100}, {1.0}, 7).epochs(250) == std::vector<double>{2.5});
}

TEST_CASE("epochs, seeds and sources have orders of their own", "[data][sampler]") {
  const Sampler sampler({1000}, {1.0}, 1);
  const auto first = indices(sampler, 0, 1000);
  CHECK(indices(sampler, 1000, 1000) != first);
  CHECK(indices(Sampler({1000}, {1.0}, 2), 0, 1000) != first);
  CHECK(indices(Sampler({1000}, {5.0}, 1), 0, 1000) == first);  // a lone weight means nothing

  const Sampler two({100, 100}, {1.0, 1.0}, 1);
  std::vector<std::int64_t> by_source[2];
  for (std::int64_t k = 0; k < 200; ++k) {
    by_source[two.draw(k).source].push_back(two.draw(k).index);
  }
  CHECK(by_source[0] != by_source[1]);
}

TEST_CASE("the run's order does not depend on the number of ranks", "[data][sampler]") {
  // dp ranks take the samples of a step side by side; their samples together, in order, are the
  // sequence of one rank.
  const Sampler sampler({156, 24}, {3.0, 1.0}, 9);
  constexpr std::int64_t kGlobalBatch = 8;
  std::vector<std::pair<int, std::int64_t>> alone;
  for (std::int64_t k = 0; k < 40 * kGlobalBatch; ++k) {
    alone.emplace_back(sampler.draw(k).source, sampler.draw(k).index);
  }
  for (const std::int64_t dp : {1, 2, 4}) {
    std::vector<std::pair<int, std::int64_t>> together(alone.size());
    for (std::int64_t rank = dp - 1; rank >= 0; --rank) {  // any order of asking
      const Sampler own({156, 24}, {3.0, 1.0}, 9);
      for (std::int64_t step = 39; step >= 0; --step) {
        for (std::int64_t i = 0; i < kGlobalBatch / dp; ++i) {
          const std::int64_t k = step * kGlobalBatch + rank * (kGlobalBatch / dp) + i;
          together[static_cast<std::size_t>(k)] = {own.draw(k).source, own.draw(k).index};
        }
      }
    }
    CHECK(together == alone);
  }
}

TEST_CASE("each source gets its share after any number of samples", "[data][sampler]") {
  const std::vector<double> weights{0.5, 3.0, 0.01, 1.49};
  const Sampler sampler({1249, 2499, 37, 874}, weights, 3);
  std::vector<double> taken(4, 0.0);
  double worst = 0.0;
  for (std::int64_t k = 0; k < 30000; ++k) {
    taken[static_cast<std::size_t>(sampler.draw(k).source)] += 1.0;
    for (std::size_t s = 0; s < 4; ++s) {
      worst = std::max(worst, std::abs(taken[s] - static_cast<double>(k + 1) * weights[s] / 5.0));
    }
  }
  // Random draws would be off by about sqrt(30000 · 0.24) = 85. The van der Corput sequence is off
  // by less than log2(k) / 3 + 1 at each end of an interval.
  CHECK(worst < 8.0);
  CHECK(taken[2] == Approx(60.0).margin(8));
}

TEST_CASE("a mixed source too is visited epoch by epoch, every sequence once", "[data][sampler]") {
  const Sampler sampler({100, 624, 1}, {1.0, 5.0, 0.1}, 11);
  std::map<int, std::vector<std::int64_t>> by_source;
  for (std::int64_t k = 0; k < 5000; ++k) {
    const DrawnSequence drawn = sampler.draw(k);
    by_source[drawn.source].push_back(drawn.index);
  }
  const std::map<int, std::size_t> sequences{{0, 100}, {1, 624}, {2, 1}};
  for (const auto& [source, sequence] : by_source) {
    const std::size_t n = sequences.at(source);
    REQUIRE(sequence.size() > 2 * n);
    for (std::size_t epoch = 0; (epoch + 1) * n <= sequence.size(); ++epoch) {
      const std::set<std::int64_t> distinct(
          sequence.begin() + static_cast<std::ptrdiff_t>(epoch * n),
          sequence.begin() + static_cast<std::ptrdiff_t>((epoch + 1) * n));
      CHECK(distinct.size() == n);
    }
  }
}

TEST_CASE("mixing continues unbroken where its period ends", "[data][sampler]") {
  // Samples 2^24 - 300 … 2^24 + 300 of two equal sources with huge epochs: no sequence twice, and
  // the shares still even.
  const Sampler sampler({std::int64_t{1} << 33, std::int64_t{1} << 33}, {1.0, 1.0}, 5);
  std::set<std::pair<int, std::int64_t>> seen;
  int of_first = 0;
  for (std::int64_t k = (1 << 24) - 300; k < (1 << 24) + 300; ++k) {
    const DrawnSequence drawn = sampler.draw(k);
    seen.emplace(drawn.source, drawn.index);
    of_first += drawn.source == 0 ? 1 : 0;
  }
  CHECK(seen.size() == 600);
  CHECK(of_first == 300);
}

TEST_CASE("a source of little weight still appears", "[data][sampler]") {
  const Sampler sampler({100, 100}, {1e-12, 1.0}, 1);
  int hits = 0;
  for (std::int64_t k = 0; k < 100; ++k) {
    hits += sampler.draw(k).source == 0 ? 1 : 0;
  }
  CHECK(hits == 1);  // once in 2^24 samples, at the first
}

TEST_CASE("more than 2^31 sequences and samples past 2^40 work", "[data][sampler]") {
  const std::int64_t sequences = 3'662'109'375;  // 15 · 10^12 tokens in sequences of 4096
  const Sampler sampler({sequences}, {1.0}, 1);
  for (const std::int64_t k : {std::int64_t{0}, std::int64_t{1} << 33, std::int64_t{1} << 41}) {
    const DrawnSequence drawn = sampler.draw(k);
    CHECK(drawn.index >= 0);
    CHECK(drawn.index < sequences);
  }
}

TEST_CASE("impossible sources and weights are refused", "[data][sampler]") {
  CHECK_THROWS_AS(Sampler({0}, {1.0}, 1), InternalError);
  CHECK_NOTHROW(Sampler({1}, {1.0}, 1));
  for (const double weight : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    CHECK_THROWS_AS(Sampler({6}, {weight}, 1), ConfigError);
  }
}

}  // namespace
}  // namespace dstrain
