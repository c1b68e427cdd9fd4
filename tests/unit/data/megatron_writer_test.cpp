#include "engine/data/megatron_writer.h"

#include <csignal>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <sys/resource.h>

#include "engine/data/disk_error.h"
#include "tests/unit/data/scratch_folder.h"

namespace dstrain {
namespace {

using test::ScratchFolder;

void write_documents(const std::string& prefix,
                     TokenType type,
                     const std::vector<std::vector<std::int32_t>>& documents) {
  MegatronWriter writer(prefix, type);
  for (const auto& document : documents) {
    writer.append(document);
    writer.end_document();
  }
  writer.finish();
  writer.publish();
}

TEST_CASE("the pair is Megatron's, byte for byte", "[data]") {
  const auto [type, code, width] = GENERATE(table<TokenType, int, int>(
      {{TokenType::kU8, 1, 1}, {TokenType::kU16, 8, 2}, {TokenType::kI32, 4, 4}}));
  const ScratchFolder folder;
  write_documents(folder / "a", type, {{7, 200, 0}, {}, {255}});
  CHECK(test::read_file(folder / "a.bin") == test::tokens_as_bytes({7, 200, 0, 255}, width));
  CHECK(test::read_file(folder / "a.idx") == test::megatron_index_bytes(code, width, {3, 0, 1}));
}

TEST_CASE("an index with one document, spelled out", "[data]") {
  const ScratchFolder folder;
  write_documents(folder / "a", TokenType::kU16, {{1, 2}});
  const std::string expected(
      "MMIDIDX\0\0"
      "\1\0\0\0\0\0\0\0"  // version
      "\x08"              // u16
      "\1\0\0\0\0\0\0\0"
      "\2\0\0\0\0\0\0\0"  // one sequence, two document entries
      "\2\0\0\0"          // its length
      "\0\0\0\0\0\0\0\0"  // where it begins
      "\0\0\0\0\0\0\0\0"
      "\1\0\0\0\0\0\0\0",  // document entries
      62);
  CHECK(test::read_file(folder / "a.idx") == expected);
}

TEST_CASE("the vocabulary decides the type as in Megatron, and bytes take one", "[data]") {
  CHECK(type_for_vocabulary(256) == TokenType::kU8);
  CHECK(type_for_vocabulary(257) == TokenType::kU16);
  CHECK(type_for_vocabulary(65499) == TokenType::kU16);
  CHECK(type_for_vocabulary(65500) == TokenType::kI32);
}

TEST_CASE("a discarded document leaves no trace, long or short", "[data]") {
  const ScratchFolder folder;
  MegatronWriter writer(folder / "a", TokenType::kU8);
  writer.append(std::vector<std::int32_t>{1, 2});
  writer.end_document();
  writer.append(std::vector<std::int32_t>{9});
  writer.discard_document();
  writer.append(std::vector<std::int32_t>(20 << 20, 9));  // on the disk already
  writer.discard_document();
  writer.append(std::vector<std::int32_t>{3});
  writer.end_document();
  writer.finish();
  writer.publish();
  CHECK(test::read_file(folder / "a.bin") == "\1\2\3");
  CHECK(test::read_file(folder / "a.idx") == test::megatron_index_bytes(1, 1, {2, 1}));
}

TEST_CASE("nothing has its final name before publish, and nothing stays without it", "[data]") {
  const ScratchFolder folder;
  {
    MegatronWriter writer(folder / "a", TokenType::kU8);
    writer.append(std::vector<std::int32_t>{1});
    writer.end_document();
    writer.finish();
    CHECK_FALSE(std::filesystem::exists(folder / "a.bin"));
    CHECK_FALSE(std::filesystem::exists(folder / "a.idx"));
    CHECK_THROWS_WITH(MegatronWriter(folder / "a", TokenType::kU8),
                      Catch::Contains("another process is writing it"));
  }
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("a disk that takes no more is an error that names the file", "[data]") {
  const ScratchFolder folder;
  // The nearest thing to a full disk that needs no rights: a limit on the size of a file.
  struct rlimit before {};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  struct rlimit small = before;
  small.rlim_cur = 1 << 20;
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  std::string said;
  {
    MegatronWriter writer(folder / "a", TokenType::kU8);
    try {
      writer.append(std::vector<std::int32_t>(9 << 20, 1));
    } catch (const DiskError& error) {
      said = error.what();
    }
  }
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, old_handler);
  CHECK_THAT(said,
             Catch::Contains("cannot write " + (folder / "a.bin") + ".partial: File too large") &&
                 Catch::Contains("files of this process may have 1048576 bytes") &&
                 Catch::Contains("1.0 MiB of it were written"));
  CHECK(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace dstrain
