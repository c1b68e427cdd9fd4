#include "engine/data/batch_loader.h"

#include <cstdint>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/config/config_error.h"
#include "tests/unit/data/scratch_folder.h"

namespace dstrain {
namespace {

using test::ScratchFolder;

/// Token i of the file is i: where a window came from can be read off its first id.
void write_counting(const std::string& prefix, std::int64_t count) {
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), 0);
  test::write_file(prefix + ".bin", test::tokens_as_bytes(tokens, 2));
  test::write_file(prefix + ".idx", test::megatron_index_bytes(8, 2, {count - 10, 10}));
}

BatchLoader loader_of(const DataConfig& data) {
  return {data, data.train, /*vocab_size=*/1000, /*seed=*/7};
}

TEST_CASE("targets are the inputs shifted by one, and an epoch covers the file", "[data]") {
  const ScratchFolder folder;
  write_counting(folder / "a", 41);
  constexpr std::int64_t kT = 5;
  const BatchLoader loader = loader_of({.train = {{folder / "a"}}, .sequence_length = kT});
  REQUIRE(loader.sequences_per_epoch() == 8);
  std::vector<std::int32_t> inputs(4 * kT);
  std::vector<std::int32_t> targets(4 * kT);
  std::set<std::int32_t> covered;
  for (const std::int64_t first : {0, 4}) {
    loader.load(first, inputs, targets);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      CHECK(targets[i] == inputs[i] + 1);
      CHECK(inputs[i] == inputs[i / kT * kT] + static_cast<std::int32_t>(i % kT));
      covered.insert(inputs[i]);
    }
  }
  CHECK(covered.size() == 40);
}

TEST_CASE("a batch does not depend on how it is cut into micro-batches", "[data]") {
  const ScratchFolder folder;
  write_counting(folder / "a", 1000);
  write_counting(folder / "b", 300);
  constexpr std::int64_t kT = 8;
  const BatchLoader loader =
      loader_of({.train = {{folder / "a", 1.0}, {folder / "b", 0.5}}, .sequence_length = kT});
  std::vector<std::int32_t> whole(8 * kT);
  std::vector<std::int32_t> targets(8 * kT);
  loader.load(16, whole, targets);
  for (std::int64_t b = 0; b < 8; ++b) {
    std::vector<std::int32_t> one(kT);
    std::vector<std::int32_t> one_targets(kT);
    loader.load(16 + b, one, one_targets);
    CHECK(std::equal(one.begin(), one.end(), whole.begin() + b * kT));
    CHECK(std::equal(one_targets.begin(), one_targets.end(), targets.begin() + b * kT));
  }
}

TEST_CASE("a file shorter than one sample is refused by name", "[data]") {
  const ScratchFolder folder;
  write_counting(folder / "short", 32);
  const std::vector<DataSource> sources{{folder / "short"}};
  CHECK_THROWS_WITH(loader_of({.train = sources, .sequence_length = 32}),
                    Catch::Contains(folder / "short") && Catch::Contains("holds 32 tokens") &&
                        Catch::Contains("need 33"));
  CHECK(loader_of({.train = sources, .sequence_length = 31}).sequences_per_epoch() == 1);
  CHECK(loader_of({.train = sources, .sequence_length = 16}).sequences_per_epoch() == 1);
}

}  // namespace
}  // namespace dstrain
