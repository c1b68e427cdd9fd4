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

namespace dstrain {
namespace {

std::vector<std::int64_t> begins(const Sampler& sampler, std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> all;
  for (std::int64_t k = first; k < first + count; ++k) {
    all.push_back(sampler.window(k).begin);
  }
  return all;
}

TEST_CASE("an epoch visits each window of a source exactly once", "[data][sampler]") {
  constexpr std::int64_t kLength = 16;
  for (const std::int64_t windows : {1, 2, 7, 1000}) {
    // The tail that is too short for a further window and its target is left out.
    for (const std::int64_t tail : {1, 16}) {
      const Sampler sampler({windows * kLength + tail}, {1.0}, kLength, 42);
      REQUIRE(sampler.windows_per_epoch() == windows);
      for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
        auto seen = begins(sampler, epoch * windows, windows);
        std::sort(seen.begin(), seen.end());
        for (std::int64_t w = 0; w < windows; ++w) {
          REQUIRE(seen[static_cast<std::size_t>(w)] == w * kLength);
        }
      }
    }
  }
}

TEST_CASE("epochs, seeds and sources have orders of their own", "[data][sampler]") {
  const Sampler sampler({100001}, {1.0}, 100, 1);
  const auto first = begins(sampler, 0, 1000);
  CHECK(begins(sampler, 1000, 1000) != first);
  CHECK(begins(Sampler({100001}, {1.0}, 100, 2), 0, 1000) != first);
  CHECK(begins(Sampler({100001}, {5.0}, 100, 1), 0, 1000) == first);  // a lone weight means nothing

  const Sampler two({1001, 1001}, {1.0, 1.0}, 10, 1);
  std::vector<std::int64_t> by_source[2];
  for (std::int64_t k = 0; k < 200; ++k) {
    by_source[two.window(k).source].push_back(two.window(k).begin);
  }
  CHECK(by_source[0] != by_source[1]);
}

TEST_CASE("the run's order does not depend on the number of ranks", "[data][sampler]") {
  // dp ranks take the samples of a step side by side; what the ranks take together, in order, is
  // the sequence of one rank.
  const Sampler sampler({5000, 777}, {3.0, 1.0}, 32, 9);
  constexpr std::int64_t kGlobalBatch = 8;
  std::vector<std::pair<int, std::int64_t>> alone;
  for (std::int64_t k = 0; k < 40 * kGlobalBatch; ++k) {
    alone.emplace_back(sampler.window(k).source, sampler.window(k).begin);
  }
  for (const std::int64_t dp : {1, 2, 4}) {
    std::vector<std::pair<int, std::int64_t>> together(alone.size());
    for (std::int64_t rank = dp - 1; rank >= 0; --rank) {  // any order of asking
      const Sampler own({5000, 777}, {3.0, 1.0}, 32, 9);
      for (std::int64_t step = 39; step >= 0; --step) {
        for (std::int64_t i = 0; i < kGlobalBatch / dp; ++i) {
          const std::int64_t k = step * kGlobalBatch + rank * (kGlobalBatch / dp) + i;
          together[static_cast<std::size_t>(k)] = {own.window(k).source, own.window(k).begin};
        }
      }
    }
    CHECK(together == alone);
  }
}

TEST_CASE("each source gets its share after any number of samples", "[data][sampler]") {
  const std::vector<double> weights{0.5, 3.0, 0.01, 1.49};
  const Sampler sampler({10000, 20000, 300, 7000}, weights, 8, 3);
  std::vector<double> taken(4, 0.0);
  double worst = 0.0;
  for (std::int64_t k = 0; k < 30000; ++k) {
    taken[static_cast<std::size_t>(sampler.window(k).source)] += 1.0;
    for (std::size_t s = 0; s < 4; ++s) {
      worst = std::max(worst, std::abs(taken[s] - static_cast<double>(k + 1) * weights[s] / 5.0));
    }
  }
  // Random draws would be off by about sqrt(30000 · 0.24) = 85. The van der Corput sequence is off
  // by less than log2(k) / 3 + 1 at each end of an interval.
  CHECK(worst < 8.0);
  CHECK(taken[2] == Approx(60.0).margin(8));
}

TEST_CASE("a mixed source too is visited epoch by epoch, every window once", "[data][sampler]") {
  const Sampler sampler({1601, 10000, 17}, {1.0, 5.0, 0.1}, 16, 11);  // 100, 624 and 1 windows
  std::map<int, std::vector<std::int64_t>> by_source;
  for (std::int64_t k = 0; k < 5000; ++k) {
    const Window window = sampler.window(k);
    by_source[window.source].push_back(window.begin);
  }
  const std::map<int, std::size_t> windows{{0, 100}, {1, 624}, {2, 1}};
  for (const auto& [source, sequence] : by_source) {
    const std::size_t n = windows.at(source);
    REQUIRE(sequence.size() > 2 * n);
    for (std::size_t epoch = 0; (epoch + 1) * n <= sequence.size(); ++epoch) {
      const std::set<std::int64_t> distinct(
          sequence.begin() + static_cast<std::ptrdiff_t>(epoch * n),
          sequence.begin() + static_cast<std::ptrdiff_t>((epoch + 1) * n));
      CHECK(distinct.size() == n);
    }
  }
}

TEST_CASE("mixing goes on unbroken where its period ends", "[data][sampler]") {
  // Samples 2^24 - 300 … 2^24 + 300 of two equal sources with huge epochs: no window twice, and the
  // shares still even.
  const Sampler sampler({std::int64_t{1} << 40, std::int64_t{1} << 40}, {1.0, 1.0}, 128, 5);
  std::set<std::pair<int, std::int64_t>> seen;
  int of_first = 0;
  for (std::int64_t k = (1 << 24) - 300; k < (1 << 24) + 300; ++k) {
    const Window window = sampler.window(k);
    seen.emplace(window.source, window.begin);
    of_first += window.source == 0 ? 1 : 0;
  }
  CHECK(seen.size() == 600);
  CHECK(of_first == 300);
}

TEST_CASE("a source of little weight still appears", "[data][sampler]") {
  const Sampler sampler({1001, 1001}, {1e-12, 1.0}, 10, 1);
  int hits = 0;
  for (std::int64_t k = 0; k < 100; ++k) {
    hits += sampler.window(k).source == 0 ? 1 : 0;
  }
  CHECK(hits == 1);  // once in 2^24 samples, at the first
}

TEST_CASE("sizes past 2^31 tokens and samples past 2^40 work", "[data][sampler]") {
  const std::int64_t tokens = std::int64_t{15} * 1'000'000'000'000;
  const Sampler sampler({tokens}, {1.0}, 4096, 1);
  for (const std::int64_t k : {std::int64_t{0}, std::int64_t{1} << 33, std::int64_t{1} << 41}) {
    const Window window = sampler.window(k);
    CHECK(window.begin >= 0);
    CHECK(window.begin + 4096 < tokens);
    CHECK(window.begin % 4096 == 0);
  }
}

TEST_CASE("impossible sources and weights are refused", "[data][sampler]") {
  CHECK_THROWS_AS(Sampler({16}, {1.0}, 16, 1), ConfigError);
  CHECK_NOTHROW(Sampler({17}, {1.0}, 16, 1));
  CHECK_THROWS_AS(Sampler({0}, {1.0}, 16, 1), ConfigError);
  for (const double weight : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    CHECK_THROWS_AS(Sampler({100}, {weight}, 16, 1), ConfigError);
  }
}

}  // namespace
}  // namespace dstrain
