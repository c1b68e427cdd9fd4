// Hashes beside token files: no changed byte of a pair goes unnoticed, and a pair without hashes is
// read as before.
#include "engine/data/token_hashes.h"

#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/config/config_error.h"
#include "engine/data/megatron_writer.h"
#include "engine/data/token_dataset.h"
#include "tests/unit/data/scratch_folder.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;
using test::ScratchFolder;

/// Documents of these lengths, of rising ids; every document is begun once and discarded first.
void write_pair(const std::string& prefix, const std::vector<std::int64_t>& lengths) {
  MegatronWriter writer(prefix, TokenType::kU16);
  std::int32_t id = 0;
  for (const std::int64_t length : lengths) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(length));
    for (std::int32_t& value : ids)
      value = id++ % 60000;
    writer.append(std::vector<std::int32_t>(static_cast<std::size_t>(length / 2 + 70000), 7));
    writer.discard_document();
    writer.append(std::span(ids).first(ids.size() / 3));
    writer.append(std::span(ids).subspan(ids.size() / 3));
    writer.end_document();
  }
  writer.append(std::vector<std::int32_t>(40000, 7));
  writer.discard_document();
  writer.finish();
  writer.publish();
}

/// The error when all of a pair is read; "" if it is taken as whole.
std::string complaint(const std::string& prefix) {
  try {
    const auto file = TokenFile::open(prefix, 65536);
    std::vector<std::int32_t> ids(static_cast<std::size_t>(file->num_tokens()));
    file->read(0, ids);
    return "";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

TEST_CASE("no flipped byte and no missing end of token files goes unnoticed", "[data]") {
  const ScratchFolder folder;
  write_pair(folder / "a", {90, 0, 41});
  REQUIRE(complaint(folder / "a").empty());
  for (const char* name : {"a.bin", "a.idx", "a.hashes"}) {
    INFO(name);
    const std::string path = folder / name;
    const std::string whole = test::read_file(path);
    REQUIRE(whole.size() > 40);
    int unnoticed = 0;
    int unnamed = 0;
    for (std::size_t at = 0; at < whole.size(); ++at) {
      for (const int bit : {0, 7}) {
        std::string damaged = whole;
        damaged[at] = static_cast<char>(damaged[at] ^ (1 << bit));
        test::write_file(path, damaged);
        const std::string said = complaint(folder / "a");
        unnoticed += said.empty();
        unnamed += said.find(folder / "a.") == std::string::npos;
      }
      test::write_file(path, whole.substr(0, at));
      unnoticed += complaint(folder / "a").empty();
    }
    CHECK(unnoticed == 0);
    CHECK(unnamed == 0);
    test::write_file(path, whole + "x");
    CHECK_FALSE(complaint(folder / "a").empty());
    test::write_file(path, whole);
  }
  CHECK(complaint(folder / "a").empty());
}

TEST_CASE("a damaged stripe is named, and met only where it is read", "[data]") {
  const ScratchFolder folder;
  write_pair(folder / "a", {100000, 1, 30000, 2999});
  std::string bin = test::read_file(folder / "a.bin");
  REQUIRE(bin.size() == 266000);  // four stripes and a part
  bin[150001] ^= 4;
  test::write_file(folder / "a.bin", bin);
  const auto file = TokenFile::open(folder / "a", 65536);
  CHECK(file->has_hashes());
  std::vector<std::int32_t> ids(65536);
  file->read(0, ids);  // two stripes
  std::vector<std::int32_t> expected(ids.size());
  std::iota(expected.begin(), expected.end(), 0);
  for (std::int32_t& id : expected)
    id %= 60000;
  CHECK(ids == expected);
  std::vector<std::int32_t> window(10);
  file->read(98304, window);  // the fourth
  for (const std::int64_t begin : {65530, 70000, 98300}) {
    for (int again = 0; again < 2; ++again) {
      CHECK_THROWS_WITH(file->read(begin, window),
                        Contains((folder / "a.bin") + ": is damaged: stripe 2 (bytes 131072 to "
                                                      "196608) has the hash ") &&
                            Contains((folder / "a.hashes") + " says "));
    }
  }
}

TEST_CASE("token files without hashes are read, those with another pair's are not", "[data]") {
  const ScratchFolder folder;
  write_pair(folder / "a", {90, 41});
  write_pair(folder / "b", {90, 40});
  write_pair(folder / "c", {89, 42});
  const auto copy = [&](const char* from, const char* to) {
    std::filesystem::copy_file(folder / from, folder / to,
                               std::filesystem::copy_options::overwrite_existing);
  };
  copy("b.hashes", "a.hashes");
  CHECK_THAT(complaint(folder / "a"),
             Contains((folder / "a.hashes") + ": belongs to a .bin of 260 bytes") &&
                 Contains("remove it"));
  copy("c.hashes", "a.hashes");
  CHECK_THAT(complaint(folder / "a"), Contains((folder / "a.idx") + ": is damaged") &&
                                          Contains("remove " + (folder / "a.hashes")));
  std::filesystem::remove(folder / "a.hashes");
  CHECK(complaint(folder / "a").empty());
  CHECK_FALSE(TokenFile::open(folder / "a", 65536)->has_hashes());
}

}  // namespace
}  // namespace dstrain
