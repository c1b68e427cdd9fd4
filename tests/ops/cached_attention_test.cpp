// Attention over a cache against fp64 loops over one sequence, handed over in parts of several
// sizes: whatever the parts, each query sees the positions up to its own.
//
// T positions, H query heads, K key/value heads, D head dim, P rows of the cache
#include <algorithm>
#include <cmath>
#include <numeric>

#include <catch2/catch.hpp>

#include "kernels/attention.h"
#include "tests/ops/lab.h"

namespace dstrain::test {
namespace {

struct Heads {
  std::int64_t query;
  std::int64_t key_value;
  std::int64_t depth;

  [[nodiscard]] std::int64_t width() const { return (query + 2 * key_value) * depth; }
};

Values all_attention(const Heads& heads,
                     std::int64_t positions,
                     const AttentionReach& reach,
                     const Values& slopes,
                     const Values& qkv) {
  const auto at = [&](std::int64_t t, std::int64_t head, std::int64_t d) {
    return qkv[static_cast<std::size_t>(t * heads.width() + head * heads.depth + d)];
  };
  const double scale = reach.scale > 0.0F ? static_cast<double>(reach.scale)
                                          : 1.0 / std::sqrt(static_cast<double>(heads.depth));
  const auto cap = static_cast<double>(reach.cap);
  Values out;
  for (std::int64_t t = 0; t < positions; ++t) {
    for (std::int64_t h = 0; h < heads.query; ++h) {
      const std::int64_t key = heads.query + h / (heads.query / heads.key_value);
      Values weights;
      const std::int64_t oldest =
          reach.window == 0 ? 0 : std::max<std::int64_t>(0, t + 1 - reach.window);
      for (std::int64_t u = oldest; u <= t; ++u) {
        double score = 0.0;
        for (std::int64_t d = 0; d < heads.depth; ++d) {
          score += at(t, h, d) * at(u, key, d);
        }
        score *= scale;
        const double fall =
            slopes.empty() ? 0.0 : slopes[static_cast<std::size_t>(h)] * static_cast<double>(t - u);
        weights.push_back(std::exp(cap > 0.0 ? cap * std::tanh(score / cap) : score - fall));
      }
      const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
      for (std::int64_t d = 0; d < heads.depth; ++d) {
        double sum = 0.0;
        for (std::int64_t u = oldest; u <= t; ++u) {
          sum += weights[static_cast<std::size_t>(u - oldest)] / total *
                 at(u, key + heads.key_value, d);
        }
        out.push_back(sum);
      }
    }
  }
  return out;
}

}  // namespace

TEST_CASE("cached attention agrees with fp64 whatever parts a sequence comes in",
          "[ops][attention]") {
  for (const DType dtype : kComputeDtypes) {
    for (const Heads& heads : {Heads{4, 1, 8}, {6, 2, 80}, {2, 2, 128}, {3, 3, 64}, {4, 2, 5}}) {
      // One that ends inside a part, one of a single position, and one that is never reached.
      const std::int64_t window = heads.query == 4     ? 0
                                  : heads.depth == 80  ? 19
                                  : heads.depth == 128 ? 1
                                                       : 70;
      // Gemma's scores are scaled by another number than the head's size, and capped.
      AttentionReach reach{.window = window,
                           .scale = heads.depth == 64 ? 0.2F : 0.0F,
                           .cap = heads.depth == 64 ? 6.0F : 0.0F};
      // BLOOM's fall with distance.
      const Values slopes = heads.depth == 80  ? Values{0.5, 0.25, 0.1, 0.7, 0.3, 0.05}
                            : heads.depth == 8 ? Values{0.5, 0.125, 0.03, 1.0}
                                               : Values{};
      CAPTURE(name_of(dtype), heads.query, heads.key_value, heads.depth, window, reach.cap);
      constexpr std::int64_t kPositions = 70;
      constexpr std::int64_t kRows = 77;  // more than are used
      const Values qkv = rounded_to(dtype, random_values(kPositions * heads.width(), 1, 2.0));
      const Values expected = all_attention(heads, kPositions, reach, slopes, qkv);
      // Scores are of order 8, of which f32 keeps 1e-6; they go through exp.
      // Several queries at once may round their probabilities, as training does (attention_test).
      const double relative = relative_error_of(dtype);
      const double rounded = dtype == DType::kF32 ? 0.0 : relative * largest(expected);
      conforms(
          {{"in one part", expected, relative, rounded + 1e-5},
           {"in parts", expected, relative, rounded + 1e-5},
           {"one by one", expected, relative, 1e-5}},
          [&](Lab& lab) {
            const Tensor in = lab.put(qkv, dtype, {kPositions, heads.width()});
            if (!slopes.empty()) {
              reach.slopes_H = lab.put(slopes, DType::kF32, {heads.query});
            }
            const auto attend_in = [&](const std::vector<std::int64_t>& parts) {
              const Tensor cache = lab.unset(dtype, {kRows, 2 * heads.key_value * heads.depth});
              const Tensor out = lab.unset(dtype, {kPositions, heads.query * heads.depth});
              std::int64_t begin = 0;
              for (const std::int64_t part : parts) {
                lab.ops().attention_cached({.batch = 1,
                                            .sequence = part,
                                            .query_heads = heads.query,
                                            .key_value_heads = heads.key_value,
                                            .head_dim = heads.depth},
                                           begin, reach, in.rows(begin, begin + part), cache,
                                           out.rows(begin, begin + part), {}, lab.stream());
                begin += part;
              }
              REQUIRE(begin == kPositions);
              return lab.get(out);
            };
            return std::vector<Values>{attend_in({kPositions}), attend_in({17, 1, 33, 1, 18}),
                                       attend_in(std::vector<std::int64_t>(kPositions, 1))};
          });
    }
  }
}

TEST_CASE("parts of a few positions do not change a bit", "[ops][attention]") {
  for (const BackendUnderTest& backend : backends_under_test()) {
    INFO(backend.name);
    Lab lab(backend.make(2));
    const Heads heads{4, 2, 64};
    constexpr std::int64_t kPositions = 150;
    const Tensor in = lab.put(random_values(kPositions * heads.width(), 1), DType::kF32,
                              {kPositions, heads.width()});
    const auto attend_in = [&](const std::vector<std::int64_t>& parts) {
      const Tensor cache = lab.unset(DType::kF32, {kPositions, 2 * heads.key_value * heads.depth});
      const Tensor out = lab.unset(DType::kF32, {kPositions, heads.query * heads.depth});
      std::int64_t begin = 0;
      for (const std::int64_t part : parts) {
        lab.ops().attention_cached({1, part, heads.query, heads.key_value, heads.depth}, begin,
                                   {.window = 90}, in.rows(begin, begin + part), cache,
                                   out.rows(begin, begin + part), {}, lab.stream());
        begin += part;
      }
      REQUIRE(begin == kPositions);
      return lab.get(out);
    };
    // More than a few go through tiles, whose sums depend on where the parts begin.
    std::vector<std::int64_t> parts;
    for (std::int64_t left = kPositions; left > 0; left -= parts.back()) {
      parts.push_back(std::min<std::int64_t>(left, 1 + std::ssize(parts) % 4));
    }
    CHECK((attend_in(parts) == attend_in(std::vector<std::int64_t>(kPositions, 1))));
  }
}

TEST_CASE("positions beyond the cache are refused", "[ops][attention]") {
  Lab lab(backends_under_test().front().make(1));
  const AttentionShape shape{1, 2, 2, 1, 4};
  const Tensor in = lab.unset(DType::kF32, {2, 16});
  const Tensor out = lab.unset(DType::kF32, {2, 8});
  const Tensor cache = lab.unset(DType::kF32, {5, 8});
  lab.ops().attention_cached(shape, 3, {}, in, cache, out, {}, lab.stream());
  CHECK_THROWS_WITH(lab.ops().attention_cached(shape, 4, {}, in, cache, out, {}, lab.stream()),
                    Catch::Contains("positions [4, 6) in a cache of shape [5, 8]"));
}

}  // namespace dstrain::test
