#include "engine/data/documents.h"

#include <vector>

#include <catch2/catch.hpp>

#include "kernels/ignored_target.h"

namespace dstrain {
namespace {

using Ids = std::vector<std::int32_t>;
constexpr std::int32_t kEnd = 9;

Ids positions_of(const Ids& ids, std::int64_t sequence) {
  Ids positions(ids.size(), -1);
  find_document_positions(ids, sequence, kEnd, positions);
  return positions;
}

}  // namespace

TEST_CASE("positions begin anew behind a document's end and with each sequence",
          "[data][documents]") {
  CHECK(positions_of({1, 2, 9, 3, 9, 9, 4, 5}, 8) == Ids{0, 1, 2, 0, 1, 0, 0, 1});
  CHECK(positions_of({1, 2, 3, 4, 5, 9, 1, 2}, 4) == Ids{0, 1, 2, 3, 0, 1, 0, 1});
  CHECK(positions_of({9, 9, 9}, 3) == Ids{0, 0, 0});
  CHECK(positions_of({}, 4).empty());
}

TEST_CASE("what a document's end would have to predict is ignored", "[data][documents]") {
  const Ids inputs{1, 9, 2, 3, 9};
  Ids targets{9, 2, 3, 9, 4};
  ignore_targets_behind(kEnd, inputs, targets);
  CHECK(targets == Ids{9, kIgnoredTarget, 3, 9, kIgnoredTarget});
  CHECK(count_targets(targets) == 3);
  CHECK(count_targets({}) == 0);
}

}  // namespace dstrain
