// Files that cannot be read are refused before step 1, with an error that says which file, where,
// and why.
#include <string>

#include <catch2/catch.hpp>
#include <sys/stat.h>

#include "engine/config/config_error.h"
#include "engine/data/token_dataset.h"
#include "tests/unit/data/scratch_folder.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;
using test::ScratchFolder;
using test::write_file;

std::string refusal(const std::string& prefix, std::int64_t vocab_size = 256) {
  try {
    (void)TokenFile::open(prefix, vocab_size);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "(accepted)";
}

TEST_CASE("a missing file is named with what was looked for and what is near", "[data]") {
  const ScratchFolder folder;
  write_file(folder / "train.bin", "x");
  write_file(folder / "train.idx", "x");
  write_file(folder / "validation.bin", "x");
  const std::string said = refusal(folder / "trian");
  CHECK_THAT(said, Contains(folder / "trian.idx") && Contains(folder / "trian.bin"));
  CHECK_THAT(said, Contains("nearest in " + folder.path() + ": train.bin, train.idx"));
  CHECK_THAT(refusal(folder / "absent/train"),
             Contains("the folder " + (folder / "absent") + " does not exist"));
  const ScratchFolder empty;
  CHECK_THAT(refusal(empty / "train"), Contains("prepare-data"));
}

TEST_CASE("an id out of range is refused with file, token and byte", "[data]") {
  const ScratchFolder folder;
  std::vector<std::int64_t> tokens(1000, 7);
  tokens[777] = 300;
  SECTION("u16 in a Megatron pair") {
    write_file(folder / "a.bin", test::tokens_as_bytes(tokens, 2));
    write_file(folder / "a.idx", test::megatron_index_bytes(8, 2, {1000}));
    CHECK_THAT(refusal(folder / "a", 300),
               Contains((folder / "a.bin") + ": token 777 (at byte 1554) has id 300") &&
                   Contains("[0, 300)"));
    CHECK(refusal(folder / "a", 301) == "(accepted)");
  }
  SECTION("u32 in an llm.c file: the header counts") {
    write_file(folder / "a.bin",
               test::llmc_bytes(20240801, 7, 1000, test::tokens_as_bytes(tokens, 4)));
    CHECK_THAT(refusal(folder / "a", 300), Contains("token 777 (at byte 4132) has id 300"));
  }
  SECTION("a negative id") {
    tokens[777] = -1;
    write_file(folder / "a.bin", test::tokens_as_bytes(tokens, 4));
    write_file(folder / "a.idx", test::megatron_index_bytes(4, 4, {1000}));
    CHECK_THAT(refusal(folder / "a", 300), Contains("token 777 (at byte 3108) has id -1"));
  }
}

TEST_CASE("a .idx cut anywhere is refused", "[data]") {
  const ScratchFolder folder;
  write_file(folder / "a.bin", std::string(12, 'x'));
  const std::string whole = test::megatron_index_bytes(1, 1, {5, 0, 7});
  write_file(folder / "a.idx", whole);
  REQUIRE(refusal(folder / "a") == "(accepted)");
  for (std::size_t size = 0; size < whole.size(); ++size) {
    write_file(folder / "a.idx", whole.substr(0, size));
    CAPTURE(size);
    CHECK_THAT(refusal(folder / "a"), Contains(folder / "a.idx") && Contains("truncated"));
  }
  write_file(folder / "a.idx", whole + "z");
  CHECK_THAT(refusal(folder / "a"), Contains("past its end"));
}

TEST_CASE("every damaged field of a .idx is refused at its byte", "[data]") {
  const ScratchFolder folder;
  write_file(folder / "a.bin", std::string(12, 'x'));
  const std::string whole = test::megatron_index_bytes(1, 1, {5, 0, 7});
  // 34: lengths (3 × 4), 46: offsets (3 × 8), 70: documents (4 × 8)
  struct Damage {
    std::size_t byte;
    char value;
    const char* said;
  };
  const Damage damage = GENERATE(
      Damage{0, 'X', "at byte 0: not a Megatron .idx"}, Damage{9, 2, "at byte 9: version 2"},
      Damage{17, 0, "at byte 17: token type code 0"}, Damage{17, 9, "token type code 9"},
      Damage{17, 7, "f32 values"}, Damage{25, 127, "at byte 18"}, Damage{33, 127, "at byte 26"},
      Damage{37, -128, "at byte 34: sequence 0 has -"},
      Damage{34, 6, "at byte 54: sequence 1 begins at byte 5"},
      Damage{46, 1, "at byte 46: sequence 0"}, Damage{42, 8, "a.bin: truncated: it has 12 bytes"},
      Damage{42, 6, "a.bin: has bytes past its end"},
      Damage{70, 1, "at byte 70: the first document"},
      Damage{78, 4, "at byte 78: document 1 begins at sequence 4"},
      Damage{86, 0, "at byte 86: document 2 begins at sequence 0, expected 1 … 3"},
      Damage{94, 2, "the documents end at sequence 2 of 3"});
  std::string damaged = whole;
  damaged[damage.byte] = damage.value;
  write_file(folder / "a.idx", damaged);
  CHECK_THAT(refusal(folder / "a"), Contains(damage.said));
}

TEST_CASE("a .bin that does not fit its .idx is refused", "[data]") {
  const ScratchFolder folder;
  write_file(folder / "a.idx", test::megatron_index_bytes(8, 2, {5}));
  CHECK_THAT(refusal(folder / "a"), Contains((folder / "a.bin") + ": is missing"));
  write_file(folder / "a.bin", std::string(9, '\1'));
  CHECK_THAT(refusal(folder / "a"),
             Contains("truncated: it has 9 bytes") && Contains("5 tokens of 2 bytes = 10 bytes"));
}

TEST_CASE("llm.c files of the wrong size, version or kind are refused", "[data]") {
  const ScratchFolder folder;
  const std::string path = folder / "a.bin";
  const std::string tokens = test::tokens_as_bytes({1, 2, 3}, 2);
  write_file(path, test::llmc_bytes(20240520, 1, 4, tokens));
  CHECK_THAT(refusal(path), Contains("truncated: it has 1030 bytes") && Contains("1032 bytes"));
  write_file(path, test::llmc_bytes(20240520, 1, 2, tokens));
  CHECK_THAT(refusal(path), Contains("past its end"));
  write_file(path, test::llmc_bytes(20240520, 7, 3, tokens));
  CHECK_THAT(refusal(path), Contains("at byte 4: version 7"));
  write_file(path, test::llmc_bytes(20240326, 3, 3, tokens));
  CHECK_THAT(refusal(path), Contains("another kind of llm.c file"));
  write_file(path, test::llmc_bytes(20240520, 1, 3, tokens).substr(0, 500));
  CHECK_THAT(refusal(path), Contains("truncated: it has 500 bytes"));
}

TEST_CASE("foreign files are refused by what they are", "[data]") {
  const ScratchFolder folder;
  const std::string path = folder / "a.bin";
  write_file(path, "int main() { return 0; } // a text, not ids\n");
  CHECK_THAT(refusal(path, 65536), Contains("text, not token ids") && Contains("prepare-data"));
  write_file(path, "\x1f\x8b\x08 something");
  CHECK_THAT(refusal(path, 65536), Contains("gzip"));
  write_file(path, std::string("\x93NUMPY\1\0", 8) + std::string(100, '\0'));
  CHECK_THAT(refusal(path, 65536), Contains("NumPy"));
  write_file(path, std::string(7, '\2'));
  CHECK_THAT(refusal(path, 65536), Contains("7 bytes is not a whole number of u16"));
  std::filesystem::remove(path);
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);  // opening it would wait for ever
  CHECK_THAT(refusal(path, 65536), Contains("no token file"));
}

}  // namespace
}  // namespace dstrain
