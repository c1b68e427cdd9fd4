#include "engine/plan/token_share.h"

#include <set>
#include <vector>

#include <catch2/catch.hpp>

#include "kernels/core/check.h"

namespace dstrain {
namespace {

TEST_CASE("the ranks of a context group have every token once, in both orders", "[plan]") {
  constexpr std::int64_t kSequence = 48;
  for (const bool zigzag : {false, true}) {
    for (const int ring : {1, 2, 4}) {
      for (const int heads : {1, 2, 3}) {
        CAPTURE(zigzag, ring, heads);
        std::multiset<std::int64_t> tokens;
        for (int r = 0; r < ring; ++r) {
          std::multiset<std::int64_t> of_place;
          std::multiset<std::int64_t> of_ranks;
          for (int h = 0; h < heads; ++h) {
            const ContextShape share{
                .ring = ring, .ring_rank = r, .heads = heads, .heads_rank = h, .zigzag = zigzag};
            CHECK(kSequence % share.unit() == 0);
            for (int chunk = 0; chunk < share.chunks(); ++chunk) {
              const Range own = share.chunk(chunk, kSequence);
              CHECK(own.size() == kSequence / share.unit());
              for (std::int64_t at = own.begin; at < own.end; ++at) {
                tokens.insert(at);
                of_ranks.insert(at);
              }
              const Range of_ring = share.ring_chunk(r, chunk, kSequence);
              for (std::int64_t at = of_ring.begin; h == 0 && at < of_ring.end; ++at) {
                of_place.insert(at);
              }
            }
          }
          CHECK(of_place == of_ranks);
        }
        CHECK(tokens.size() == kSequence);
        CHECK(std::set<std::int64_t>(tokens.begin(), tokens.end()).size() == kSequence);
      }
    }
  }
}

/// Pairs of a query and a key that it sees, by brute force, of one place in the ring.
std::int64_t pairs_seen(const ContextShape& share, int place, std::int64_t sequence) {
  std::int64_t pairs = 0;
  for (int chunk = 0; chunk < share.chunks(); ++chunk) {
    const Range queries = share.ring_chunk(place, chunk, sequence);
    for (std::int64_t query = queries.begin; query < queries.end; ++query) {
      pairs += query + 1;
    }
  }
  return pairs;
}

TEST_CASE("zigzag order shares the causal work out evenly, and order by order does not", "[plan]") {
  const ContextShape zigzag{.ring = 4, .zigzag = true};
  const ContextShape in_order{.ring = 4};
  for (int place = 1; place < 4; ++place) {
    CHECK(pairs_seen(zigzag, place, 64) == pairs_seen(zigzag, 0, 64));
  }
  CHECK(pairs_seen(in_order, 3, 64) > 6 * pairs_seen(in_order, 0, 64));
}

TEST_CASE("only the chunks that hold a visible key are asked for", "[plan]") {
  for (const bool zigzag : {false, true}) {
    for (const std::int64_t window : {0, 1, 2, 5, 8, 9, 17, 64}) {
      constexpr std::int64_t kSequence = 64;
      const ContextShape share{.ring = 4, .zigzag = zigzag};
      for (int queries = 0; queries < 4; ++queries) {
        for (int keys = 0; keys < 4; ++keys) {
          CAPTURE(zigzag, window, queries, keys);
          std::set<std::int64_t> seen;  // chunks, by brute force
          for (int key = 0; key < share.chunks(); ++key) {
            for (int query = 0; query < share.chunks(); ++query) {
              const Range q = share.ring_chunk(queries, query, kSequence);
              const Range k = share.ring_chunk(keys, key, kSequence);
              for (std::int64_t i = q.begin; i < q.end; ++i) {
                for (std::int64_t j = k.begin; j < k.end; ++j) {
                  if (j <= i && (window == 0 || j > i - window)) seen.insert(key);
                }
              }
            }
          }
          const Range chunks = share.chunks_seen(queries, keys, kSequence, window);
          std::set<std::int64_t> asked;
          for (std::int64_t chunk = chunks.begin; chunk < chunks.end; ++chunk) {
            asked.insert(chunk);
          }
          CHECK(asked == seen);
        }
      }
    }
  }
  // Late keys do not travel to early queries, in the order of the tokens.
  const ContextShape in_order{.ring = 4};
  CHECK(in_order.chunks_seen(1, 2, 64, 0).size() == 0);
  CHECK(in_order.chunks_seen(2, 1, 64, 0).size() == 1);
}

TEST_CASE("sequences that do not divide are refused", "[plan]") {
  const ContextShape share{.ring = 2, .zigzag = true};
  CHECK_THROWS_AS(share.chunk(0, 6), InternalError);
}

}  // namespace
}  // namespace dstrain
