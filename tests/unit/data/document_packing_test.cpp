// Best-fit decreasing, held to a packing that looks at every sequence for every document.
#include "engine/data/document_packing.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/config/config_error.h"
#include "kernels/math/philox.h"
#include "tests/harness/sweep.h"
#include "tests/unit/data/scratch_folder.h"

namespace dstrain {
namespace {

using test::ScratchFolder;
using Lengths = std::vector<std::int64_t>;

/// A pair of documents of these lengths, of bytes.
std::unique_ptr<DocumentIndex> index_of(const ScratchFolder& folder, const Lengths& lengths) {
  std::int64_t tokens = 0;
  for (const std::int64_t length : lengths) {
    tokens += length;
  }
  test::write_file(folder / "a.bin", std::string(static_cast<std::size_t>(tokens), 'x'));
  test::write_file(folder / "a.idx", test::megatron_index_bytes(1, 1, lengths));
  return DocumentIndex::open(folder / "a");
}

/// Pareto-distributed, from 1 token on: a few are many times as long as the others.
Lengths heavy_tail(std::uint64_t seed, std::size_t count, double shape) {
  Lengths lengths;
  for (std::size_t i = 0; i < count; ++i) {
    const double uniform = (philox(seed, i, 0)[0] + 1.0) / 4294967297.0;
    const double length = 12.0 * (std::pow(uniform, -1.0 / shape) - 1.0);
    lengths.push_back(static_cast<std::int64_t>(std::min(length, 20'000.0)));
  }
  return lengths;
}

/// The paper's algorithm, word for word: how many tokens are in each sequence, sorted.
Lengths filled_by_hand(const Lengths& lengths, std::int64_t sequence) {
  Lengths items;
  Lengths filled;
  for (std::int64_t length : lengths) {
    for (; length >= sequence; length -= sequence) {
      filled.push_back(sequence);
    }
    if (length > 0) items.push_back(length);
  }
  std::sort(items.rbegin(), items.rend());
  for (const std::int64_t item : items) {
    auto best = filled.end();
    for (auto it = filled.begin(); it != filled.end(); ++it) {
      const bool fits = *it + item <= sequence;
      if (fits && (best == filled.end() || *it > *best)) best = it;
    }
    if (best == filled.end()) {
      filled.push_back(item);
    } else {
      *best += item;
    }
  }
  std::sort(filled.begin(), filled.end());
  return filled;
}

void check_packing(const Lengths& lengths, std::int64_t sequence) {
  CAPTURE(lengths.size(), sequence);
  const ScratchFolder folder;
  const auto documents = index_of(folder, lengths);
  const DocumentPacking packing(index_of(folder, lengths), sequence);
  std::vector<std::pair<std::int64_t, std::int64_t>> pieces;  // begin, size
  Lengths filled;
  Lengths pieces_of(lengths.size(), 0);
  for (std::int64_t index = 0; index < packing.num_sequences(); ++index) {
    filled.push_back(0);
    for (const DocumentPacking::Piece& piece : packing.pieces(index)) {
      const std::int64_t document = documents->document_of(piece.begin);
      const std::int64_t end = documents->first_token(document + 1);
      REQUIRE(piece.size > 0);
      REQUIRE(piece.begin + piece.size <= end);
      REQUIRE(piece.ends_document == (piece.begin + piece.size == end));
      REQUIRE((piece.ends_document || piece.size == sequence));
      pieces.emplace_back(piece.begin, piece.size);
      filled.back() += piece.size;
      pieces_of[static_cast<std::size_t>(document)] += 1;
    }
    REQUIRE(filled.back() <= sequence);
  }
  // Every token once.
  std::sort(pieces.begin(), pieces.end());
  std::int64_t token = 0;
  for (const auto& [begin, size] : pieces) {
    REQUIRE(begin == token);
    token += size;
  }
  CHECK(token == documents->first_token(documents->num_documents()));
  CHECK(packing.num_tokens() == token);
  // In as few pieces as there can be.
  std::int64_t longer = 0;
  for (std::size_t d = 0; d < lengths.size(); ++d) {
    REQUIRE(pieces_of[d] == (lengths[d] + sequence - 1) / sequence);
    longer += lengths[d] > sequence ? 1 : 0;
  }
  CHECK(packing.num_cut() == longer);
  CHECK(packing.num_documents() ==
        std::ssize(lengths) - std::count(lengths.begin(), lengths.end(), 0));
  CHECK(packing.fill() ==
        Approx(static_cast<double>(token) / static_cast<double>(std::ssize(filled) * sequence)));
  std::sort(filled.begin(), filled.end());
  CHECK(filled == filled_by_hand(lengths, sequence));
}

}  // namespace

TEST_CASE(
    "only documents longer than a sequence are cut, and sequences are as full as best-fit "
    "decreasing fills them",
    "[data][packing]") {
  const Lengths lengths = heavy_tail(1, 3000 / testing::one_in_if_sanitized(3), 1.1);
  REQUIRE(std::count(lengths.begin(), lengths.end(), 0) > 0);
  for (const std::int64_t sequence : {1, 2, 63, 64, 65, 100, 1024, 5000, 100'000}) {
    check_packing(lengths, sequence);
  }
  for (const std::uint64_t seed : {2, 3, 4}) {
    check_packing(heavy_tail(seed, 400, 0.7), 256);
  }
}

TEST_CASE("documents that are as long as a sequence, or a token more or less", "[data][packing]") {
  check_packing({8}, 8);
  check_packing({9}, 8);
  check_packing({7}, 8);
  check_packing({16, 0, 17, 1, 15, 8, 0}, 8);
  check_packing({4, 4, 4, 4, 3, 5}, 8);
  check_packing({1}, 100);
}

TEST_CASE("pairs of documents share a sequence, and are cut alike", "[data][packing]") {
  using Longer = PackingRules::Longer;
  using Sizes = std::vector<Lengths>;
  const ScratchFolder folder;
  const auto sizes_of = [&](const Lengths& lengths, const PackingRules& rules) {
    const DocumentPacking packing(index_of(folder, lengths), 10, rules);
    const auto documents = index_of(folder, lengths);
    Sizes sizes;
    for (std::int64_t index = 0; index < packing.num_sequences(); ++index) {
      sizes.emplace_back();
      const auto pieces = packing.pieces(index);
      for (std::size_t i = 0; i < pieces.size(); ++i) {
        sizes.back().push_back(pieces[i].size);
        const std::int64_t document = documents->document_of(pieces[i].begin);
        CHECK(document % 2 == static_cast<std::int64_t>(i % 2));
        CHECK(pieces[i].begin == documents->first_token(document));
      }
    }
    std::sort(sizes.begin(), sizes.end());
    return sizes;
  };
  const Lengths lengths = {2, 3, 6, 4, 1, 4, 9, 4, 20, 30};
  CHECK(sizes_of(lengths, {.longer = Longer::kCut, .one_each = true, .pairs = true}) ==
        Sizes{{1, 4}, {2, 3}, {5, 4}, {5, 5}, {6, 4}});
  CHECK(sizes_of(lengths, {.longer = Longer::kDrop, .one_each = true, .pairs = true}) ==
        Sizes{{1, 4}, {2, 3}, {6, 4}});
  CHECK(sizes_of(lengths, {.longer = Longer::kDrop, .pairs = true}) == Sizes{{2, 3, 1, 4}, {6, 4}});
  const DocumentPacking packing(index_of(folder, lengths), 10,
                                {.longer = Longer::kCut, .pairs = true});
  CHECK(packing.num_documents() == 5);
  CHECK(packing.num_cut() == 2);
  CHECK(packing.num_tokens() == 5 + 10 + 5 + 9 + 10);
}

TEST_CASE("heavy tails fill their sequences", "[data][packing]") {
  const ScratchFolder folder;
  const DocumentPacking packing(index_of(folder, heavy_tail(5, 20'000, 1.1)), 1024);
  CHECK(packing.num_cut() > 100);
  CHECK(packing.fill() > 0.999);
}

TEST_CASE("a file whose documents have no tokens is refused", "[data][packing]") {
  const ScratchFolder folder;
  CHECK_THROWS_WITH(DocumentPacking(index_of(folder, {0, 0}), 8),
                    Catch::Contains("a.idx: its documents have no tokens"));
}

}  // namespace dstrain
