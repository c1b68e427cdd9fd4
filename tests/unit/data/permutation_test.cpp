#include "engine/data/permutation.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include <catch2/catch.hpp>

namespace dstrain {
namespace {

std::vector<std::int64_t> whole(std::int64_t n, std::uint64_t key, std::uint64_t stream) {
  std::vector<std::int64_t> image;
  for (std::int64_t i = 0; i < n; ++i) {
    image.push_back(permuted(i, n, key, stream));
  }
  return image;
}

TEST_CASE("every element is hit exactly once, at awkward sizes", "[data]") {
  for (const std::int64_t n : {1, 2, 3, 4, 5, 7, 8, 9, 63, 64, 65, 1000, 4097}) {
    for (std::uint64_t stream = 0; stream < 5; ++stream) {
      std::vector<std::int64_t> image = whole(n, 1234, stream);
      std::sort(image.begin(), image.end());
      std::vector<std::int64_t> expected(static_cast<std::size_t>(n));
      std::iota(expected.begin(), expected.end(), 0);
      CAPTURE(n, stream);
      CHECK(image == expected);
    }
  }
}

TEST_CASE("keys and streams each give another order", "[data]") {
  const auto base = whole(1000, 1, 0);
  CHECK(whole(1000, 1, 0) == base);
  CHECK(whole(1000, 1, 1) != base);
  CHECK(whole(1000, 2, 0) != base);
}

TEST_CASE("every place is equally likely, at small sizes too", "[data]") {
  // chi² of where element 0 goes, over 20 000 streams; n - 1 degrees of freedom. The bound is
  // beyond the 1 - 10^-6 quantile for each n (a fixed sequence: it passes always or never).
  constexpr int kTrials = 20000;
  for (const std::int64_t n : {2, 3, 5, 7, 10}) {
    for (const std::int64_t element : {std::int64_t{0}, n - 1}) {
      std::vector<double> hits(static_cast<std::size_t>(n));
      for (std::uint64_t stream = 0; stream < kTrials; ++stream) {
        hits[static_cast<std::size_t>(permuted(element, n, 99, stream))] += 1.0;
      }
      const double expected = static_cast<double>(kTrials) / static_cast<double>(n);
      double chi2 = 0.0;
      for (const double hit : hits) {
        chi2 += (hit - expected) * (hit - expected) / expected;
      }
      CAPTURE(n, element, chi2);
      CHECK(chi2 <
            static_cast<double>(n - 1) + 6.0 * std::sqrt(2.0 * static_cast<double>(n)) + 16.0);
    }
  }
}

TEST_CASE("neighbours part: an order that is not nearly sorted", "[data]") {
  // For a random permutation the mean distance of neighbours is n / 3.
  const std::int64_t n = 10007;
  const auto image = whole(n, 7, 7);
  double distance = 0.0;
  for (std::size_t i = 1; i < image.size(); ++i) {
    distance += static_cast<double>(std::abs(image[i] - image[i - 1]));
  }
  CHECK(distance / static_cast<double>(n - 1) == Approx(static_cast<double>(n) / 3).epsilon(0.03));
}

TEST_CASE("sizes past 2^32 work", "[data]") {
  const std::int64_t n = (std::int64_t{1} << 41) + 12345;
  std::vector<std::int64_t> some;
  for (std::int64_t i = 0; i < 2000; ++i) {
    const std::int64_t image = permuted(n - 1 - i, n, 5, 6);
    REQUIRE((image >= 0 && image < n));
    some.push_back(image);
  }
  std::sort(some.begin(), some.end());
  CHECK(std::adjacent_find(some.begin(), some.end()) == some.end());
  CHECK(some.front() < n / 100);  // spread over the whole of it
  CHECK(some.back() > n - n / 100);
}

}  // namespace
}  // namespace dstrain
