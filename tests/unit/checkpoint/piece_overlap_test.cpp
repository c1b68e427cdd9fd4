#include "engine/checkpoint/piece_overlap.h"

#include <map>
#include <random>
#include <utility>

#include <catch2/catch.hpp>

using namespace dstrain;

namespace {

/// Every element of a piece: global index → position in the piece, by enumerating the box.
std::map<std::int64_t, std::int64_t> elements(const Shape& shape, const BoxedRange& piece) {
  std::map<std::int64_t, std::int64_t> found;
  for (std::int64_t k = piece.flat.begin; k < piece.flat.end; ++k) {
    std::int64_t rest = k;
    std::int64_t index = 0;
    std::int64_t stride = 1;
    for (int dim = shape.rank() - 1; dim >= 0; --dim) {
      index += (piece.start[dim] + rest % piece.extent[dim]) * stride;
      rest /= piece.extent[dim];
      stride *= shape[dim];
    }
    found[index] = k - piece.flat.begin;
  }
  return found;
}

class RandomPieces {
 public:
  explicit RandomPieces(unsigned seed) : generator_(seed) {}
  std::int64_t below(std::int64_t end) {
    return std::uniform_int_distribution<std::int64_t>(0, end - 1)(generator_);
  }
  Shape shape() {
    Shape shape;
    for (std::int64_t dim = below(5); dim > 0; --dim) {
      shape.push_back(1 + below(4));
    }
    return shape;
  }
  BoxedRange piece(const Shape& shape) {
    BoxedRange piece;
    for (int dim = 0; dim < shape.rank(); ++dim) {
      const bool whole = below(2) == 0;
      const std::int64_t start = whole ? 0 : below(shape[dim]);
      piece.start.push_back(start);
      piece.extent.push_back(whole ? shape[dim] : 1 + below(shape[dim] - start));
    }
    const std::int64_t begin = below(piece.extent.numel());
    piece.flat = {begin, begin + 1 + below(piece.extent.numel() - begin)};
    return piece;
  }

 private:
  std::mt19937 generator_;
};

}  // namespace

TEST_CASE("overlaps of random boxes are what enumerating their elements finds", "[checkpoint]") {
  RandomPieces random(7);
  std::int64_t shared_elements = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    const Shape shape = random.shape();
    const BoxedRange stored = random.piece(shape);
    const BoxedRange wanted = random.piece(shape);
    std::map<std::int64_t, std::int64_t> expected;  // position in wanted → in stored
    const auto in_wanted = elements(shape, wanted);
    for (const auto& [index, position] : elements(shape, stored)) {
      if (const auto other = in_wanted.find(index); other != in_wanted.end()) {
        expected[other->second] = position;
      }
    }
    std::map<std::int64_t, std::int64_t> found;
    for_each_overlap(stored, wanted, [&](const OverlapRun& run) {
      for (std::int64_t i = 0; i < run.count; ++i) {
        REQUIRE(found.emplace(run.wanted + i, run.stored + i).second);
      }
    });
    REQUIRE(found == expected);
    shared_elements += static_cast<std::int64_t>(found.size());
  }
  CHECK(shared_elements > 10000);  // the trials did meet
}

TEST_CASE("pieces of one box meet in a single run", "[checkpoint]") {
  const Shape start{0, 0, 0};
  const Shape extent{4, 5, 6};
  std::vector<OverlapRun> runs;
  for_each_overlap({start, extent, {10, 90}}, {start, extent, {50, 120}},
                   [&](const OverlapRun& run) { runs.push_back(run); });
  CHECK(runs == std::vector<OverlapRun>{{.stored = 40, .wanted = 0, .count = 40}});
}
