#include "engine/data/token_dataset.h"

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include <catch2/catch.hpp>
#include <fcntl.h>
#include <unistd.h>

#include "engine/data/id_range.h"
#include "tests/unit/data/scratch_folder.h"

namespace dstrain {
namespace {

using test::ScratchFolder;
using test::write_file;

std::vector<std::int64_t> read_all(const TokenFile& file) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(file.num_tokens()));
  file.read(0, tokens);
  return {tokens.begin(), tokens.end()};
}

TEST_CASE("a Megatron pair of every integer type reads back as it was written", "[data]") {
  // type code, bytes per token, largest id the type holds (below 2^31)
  const auto [code, width, largest] = GENERATE(table<int, int, std::int64_t>({{1, 1, 255},
                                                                              {2, 1, 127},
                                                                              {3, 2, 32767},
                                                                              {8, 2, 65535},
                                                                              {4, 4, 2147483646},
                                                                              {5, 8, 2147483646}}));
  const ScratchFolder folder;
  const std::vector<std::int64_t> tokens{0, 1, largest, 100, 7, 7, 42};
  write_file(folder / "a.bin", test::tokens_as_bytes(tokens, width));
  // An empty document in the middle is legal.
  write_file(folder / "a.idx", test::megatron_index_bytes(code, width, {3, 0, 4}));
  const auto file = TokenFile::open(folder / "a", 2147483647);
  REQUIRE(file->num_tokens() == 7);
  CHECK(read_all(*file) == tokens);
  // The middle, at an odd place.
  std::vector<std::int32_t> middle(3);
  file->read(3, middle);
  CHECK(middle == std::vector<std::int32_t>{100, 7, 7});
}

TEST_CASE("multimodal modes after the document index are accepted", "[data]") {
  const ScratchFolder folder;
  write_file(folder / "a.bin", test::tokens_as_bytes({5, 6}, 2));
  write_file(folder / "a.idx", test::megatron_index_bytes(8, 2, {1, 1}) + std::string(2, '\0'));
  CHECK(read_all(*TokenFile::open(folder / "a", 10)) == std::vector<std::int64_t>{5, 6});
}

TEST_CASE("a nanoGPT file is its u16 ids and nothing else", "[data]") {
  const ScratchFolder folder;
  const std::vector<std::int64_t> tokens{50256, 0, 1, 40000};
  write_file(folder / "train.bin", test::tokens_as_bytes(tokens, 2));
  for (const char* name : {"train", "train.bin"}) {
    CHECK(read_all(*TokenFile::open(folder / name, 50257)) == tokens);
  }
}

TEST_CASE("llm.c files with u16 and u32 ids are known by their header", "[data]") {
  const ScratchFolder folder;
  const std::vector<std::int64_t> gpt2{50256, 3, 65535};
  const std::vector<std::int64_t> llama{128000, 70000, 1};
  write_file(folder / "g.bin", test::llmc_bytes(20240520, 1, 3, test::tokens_as_bytes(gpt2, 2)));
  write_file(folder / "l.bin", test::llmc_bytes(20240801, 7, 3, test::tokens_as_bytes(llama, 4)));
  CHECK(read_all(*TokenFile::open(folder / "g", 65536)) == gpt2);
  CHECK(read_all(*TokenFile::open(folder / "l", 128256)) == llama);
}

TEST_CASE("a pair is found by its prefix, by its .bin and by its .idx", "[data]") {
  const ScratchFolder folder;
  write_file(folder / "a.bin", "hello");
  write_file(folder / "a.idx", test::megatron_index_bytes(1, 1, {5}));
  for (const char* name : {"a", "a.bin", "a.idx"}) {
    CHECK(TokenFile::open(folder / name, 256)->num_tokens() == 5);
  }
}

TEST_CASE("tokens past 2^31 are reached", "[data]") {
  // A sparse file: 3 · 2^30 zeros as u8, then three ids; it takes no room on the disk.
  const ScratchFolder folder;
  const std::int64_t zeros = std::int64_t{3} << 30;
  const std::string path = folder / "big.bin";
  const int fd = ::open(path.c_str(), O_CREAT | O_WRONLY, 0600);
  REQUIRE(fd >= 0);
  REQUIRE(::ftruncate(fd, zeros + 3) == 0);
  REQUIRE(::pwrite(fd, "\x01\x02\x03", 3, zeros) == 3);
  ::close(fd);
  write_file(folder / "big.idx",
             test::megatron_index_bytes(
                 1, 1, {std::int64_t{1} << 30, std::int64_t{1} << 30, std::int64_t{1} << 30, 3}));
  const auto file = TokenFile::open(folder / "big", 256);  // 256: u8 needs no scan
  REQUIRE(file->num_tokens() == zeros + 3);
  std::vector<std::int32_t> tail(4);
  file->read(zeros - 1, tail);
  CHECK(tail == std::vector<std::int32_t>{0, 1, 2, 3});
}

TEST_CASE("the first id out of range is found wherever it is, by any number of threads", "[data]") {
  std::vector<std::uint16_t> ids((std::size_t{18} << 20) / 2 + 77, 99);  // five pieces of 4 MiB
  const std::span<const std::uint16_t> all(ids);
  for (const int threads : {1, 2, 5}) {
    CHECK(first_out_of_range_parallel(all, 100, threads) == kAllInRange);
  }
  const std::size_t places[] = {0, 8191, 8192, 2097151, 2097152, 5000000, ids.size() - 1};
  for (const std::size_t place : places) {
    ids[place] = 100;
    ids.back() = 60000;  // never the first, except where it is
    for (const int threads : {1, 2, 5}) {
      CHECK(first_out_of_range_parallel(all, 100, threads) == static_cast<std::int64_t>(place));
    }
    ids[place] = 99;
    ids.back() = 99;
  }
}

TEST_CASE("negative ids of signed types are out of range", "[data]") {
  const std::vector<std::int64_t> ids{1, 2, -1};
  CHECK(first_out_of_range(std::span<const std::int64_t>(ids), 1000) == 2);
  const std::vector<std::int8_t> small{1, -128};
  CHECK(first_out_of_range(std::span<const std::int8_t>(small), 256) == 1);
}

TEST_CASE("ids of 64 bits are not cut to 32 before they are checked", "[data]") {
  const std::vector<std::int64_t> ids{1, (std::int64_t{1} << 32) + 5};
  CHECK(first_out_of_range(std::span<const std::int64_t>(ids), 1000) == 1);
}

}  // namespace
}  // namespace dstrain
