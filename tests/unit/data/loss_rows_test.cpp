// Which tokens go through the loss head.
#include "engine/data/loss_rows.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/data/documents.h"
#include "kernels/ignored_target.h"

namespace dstrain {
namespace {

TEST_CASE("the tokens whose targets count go through the loss head, and few others", "[data]") {
  std::minstd_rand dice(3);
  std::set<std::int64_t> sizes;
  for (const std::int64_t tokens : {1, 5, 16, 100, 512}) {
    sizes.clear();
    for (int percent = 0; percent <= 100; ++percent) {
      std::vector<std::int32_t> targets(static_cast<std::size_t>(tokens));
      for (std::int32_t& target : targets) {
        const auto drawn = static_cast<std::int32_t>(dice() % 100);
        target = drawn < percent ? drawn : kIgnoredTarget;
      }
      std::vector<std::int32_t> rows(targets.size());
      std::vector<std::int32_t> places(targets.size());
      std::vector<std::int32_t> of_rows(targets.size());
      const std::int64_t size =
          LossRows{.rows_N = rows, .places_N = places, .targets_N = of_rows}.choose(targets);
      const std::int64_t counted = count_targets(targets);
      REQUIRE(size >= std::max<std::int64_t>(1, counted));
      REQUIRE(size <= tokens);
      REQUIRE(size <= counted + std::max<std::int64_t>(1, (tokens + 15) / 16));
      sizes.insert(size);
      std::int64_t with_places = 0;
      for (std::int64_t token = 0; token < tokens; ++token) {
        const auto at = static_cast<std::size_t>(token);
        REQUIRE((places[at] >= 0 || targets[at] == kIgnoredTarget));
        if (places[at] < 0) continue;
        with_places += 1;
        REQUIRE(rows.at(static_cast<std::size_t>(places[at])) == token);
        REQUIRE(of_rows.at(static_cast<std::size_t>(places[at])) == targets[at]);
      }
      REQUIRE(with_places == size);
      REQUIRE(count_targets(std::span(of_rows).first(static_cast<std::size_t>(size))) == counted);
      REQUIRE(std::is_sorted(rows.begin(), rows.begin() + counted));
    }
    REQUIRE(std::ssize(sizes) <= LossRows::kSizes);
  }
}

}  // namespace
}  // namespace dstrain
